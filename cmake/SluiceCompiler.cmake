# Warnings, sanitizers and the compiler cache.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths below the source tree are hashed relative to it, so that a clone elsewhere finds what another one compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

add_library(sluice_options INTERFACE)
target_compile_options(sluice_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wconversion -Wno-sign-conversion)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 asks for every member in a designated initializer, also for those with a default.
  target_compile_options(sluice_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>)
else()
  # Clang counts int to float among the lossy conversions; GCC's -Wconversion, the reference, does too only where it can lose a bit.
  target_compile_options(sluice_options INTERFACE -Wno-implicit-int-float-conversion -Wno-missing-field-initializers)
endif()
if(SLUICE_WERROR)
  # Not an error: what ggml 0.27 deprecates is all that 0.20 has.
  target_compile_options(sluice_options INTERFACE -Werror -Wno-error=deprecated-declarations)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # These follow values through inlined library code and are known to report what cannot happen (more so under sanitizers).
    foreach(flow maybe-uninitialized restrict stringop-overflow stringop-overread array-bounds free-nonheap-object)
      target_compile_options(sluice_options INTERFACE -Wno-error=${flow})
    endforeach()
    if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
      target_compile_options(sluice_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-error=dangling-reference>)
    endif()
  endif()
endif()

# Global, so that a ggml built from source is instrumented too.
if(SLUICE_SANITIZE)
  add_compile_options(-fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${SLUICE_SANITIZE})
  add_compile_definitions(SLUICE_SANITIZED=1)
  if(CMAKE_BUILD_TYPE STREQUAL "Debug")
    add_compile_definitions(_GLIBCXX_ASSERTIONS=1)
  endif()
endif()
