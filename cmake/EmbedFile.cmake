# cmake -DINPUT=file -DOUTPUT=x.cpp -DNAME=symbol -DHEADER=folder/x.h -P EmbedFile.cmake
# writes a source with the bytes of INPUT as `const unsigned char sluice::NAME[]` and `const std::size_t sluice::NAME_size`.
# An array rather than a string: some compilers cap the length of string literals.
file(READ ${INPUT} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR size "${digits} / 2")
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
file(WRITE ${OUTPUT} "#include \"${HEADER}\"\n\nnamespace sluice {\nconst std::size_t ${NAME}_size = ${size};\nconst unsigned char ${NAME}[] = {\n${hex}\n};\n}  // namespace sluice\n")
