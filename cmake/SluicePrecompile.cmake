# sluice_precompile(TARGET LIBRARY|TEST): with SLUICE_PCH, compiles TARGET with the heavy foreign headers precompiled.
# Only the sanitizer presets turn it on: at -O0 reading headers is a third of the time. The release build goes without, so a missing #include shows.
# One precompiled header serves all libraries and one all test programs (GCC tells position-independent libraries from programs); the first
# target of each kind owns it. Only foreign headers: a change of ours must not recompile everything.
option(SLUICE_PCH "Precompile foreign headers" OFF)
set(_sluice_pch_LIBRARY <algorithm> <array> <charconv> <chrono> <cmath> <cstdint> <cstring> <functional> <limits> <map> <memory> <mutex> <optional>
    <span> <string> <string_view> <tl/expected.hpp> <unordered_map> <utility> <vector> <fmt/format.h>)
set(_sluice_pch_TEST ${_sluice_pch_LIBRARY} <fstream> <random> <doctest/doctest.h>)
if(SLUICE_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # ccache hashes a precompiled header by what went into it only if the preprocessor leaves its #pragma in place.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

function(sluice_precompile TARGET KIND)
  if(NOT SLUICE_PCH)
    return()
  endif()
  get_property(owner GLOBAL PROPERTY SLUICE_PCH_${KIND})
  if(owner)
    target_precompile_headers(${TARGET} REUSE_FROM ${owner})
  else()
    target_precompile_headers(${TARGET} PRIVATE ${_sluice_pch_${KIND}})
    set_property(GLOBAL PROPERTY SLUICE_PCH_${KIND} ${TARGET})
  endif()
endfunction()
