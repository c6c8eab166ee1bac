# The CLIP vocabulary travels inside the binary: no data file to find, none to lose.
set(_clip_vocabulary ${CMAKE_SOURCE_DIR}/models/vocab/clip/bpe_simple_vocab_16e6.txt.gz)
set(_clip_vocabulary_source ${CMAKE_BINARY_DIR}/generated/clip_vocabulary_data.cpp)
add_custom_command(
  OUTPUT ${_clip_vocabulary_source}
  COMMAND ${CMAKE_COMMAND} -DINPUT=${_clip_vocabulary} -DOUTPUT=${_clip_vocabulary_source} -DNAME=clip_vocabulary_gz
          -DHEADER=text/clip_vocabulary_data.h -P ${CMAKE_SOURCE_DIR}/cmake/EmbedFile.cmake
  DEPENDS ${_clip_vocabulary} ${CMAKE_SOURCE_DIR}/cmake/EmbedFile.cmake
  COMMENT "Embedding the CLIP vocabulary"
  VERBATIM)
target_sources(sluice_text PRIVATE ${_clip_vocabulary_source})
