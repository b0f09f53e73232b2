# How Luna's own code is compiled and linked: one INTERFACE target carries every option.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# The layout of a build tree is the layout of an installation: bin/luna, lib/luna/plugins/*.so.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(LUNA_PLUGIN_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib/luna/plugins")

find_program(LUNA_CCACHE ccache)
if(LUNA_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER "${LUNA_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${LUNA_CCACHE}")
endif()
find_program(LUNA_MOLD mold)

add_library(luna_options INTERFACE)
add_library(luna::options ALIAS luna_options)
target_compile_features(luna_options INTERFACE cxx_std_20)
# -ffp-contract=off: bit-equal results need products to be fused only where the source says fma.
set_property(TARGET luna_options PROPERTY INTERFACE_COMPILE_OPTIONS
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Woverloaded-virtual>"
  "$<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wshadow>"
  "$<$<BOOL:${LUNA_WERROR}>:-Werror>"
  -ffp-contract=off -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlaps in inlined std::string concatenation that are not there (GCC bug 105651).
  target_compile_options(luna_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(LUNA_SANITIZE)
  string(REPLACE "," ";" luna_sanitizers "${LUNA_SANITIZE}")
  foreach(name IN LISTS luna_sanitizers)
    target_compile_options(luna_options INTERFACE -fsanitize=${name})
    target_link_options(luna_options INTERFACE -fsanitize=${name})
  endforeach()
  target_compile_options(luna_options INTERFACE -fno-sanitize-recover=all)
endif()
if(LUNA_BUILD_FUZZERS)
  # Coverage of every library: without it the fuzzer would see its own file alone. Clang 14 cannot
  # compile coroutines together with the check of function types.
  target_compile_options(luna_options INTERFACE -fsanitize=fuzzer-no-link -fno-sanitize=function)
endif()
if(LUNA_MOLD)
  target_link_options(luna_options INTERFACE -fuse-ld=mold)
endif()
if(LUNA_LINT)
  # By hand: .clang-tidy is written for one version, others know other checks.
  find_program(LUNA_CLANG_TIDY NAMES clang-tidy-14 clang-tidy REQUIRED)
  set(CMAKE_CXX_CLANG_TIDY "${LUNA_CLANG_TIDY};--quiet")
endif()
