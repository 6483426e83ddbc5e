# Flags shared by every target, and firesteel_library(): one static library per folder of src/.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Paths inside the tree do not count, so that one checkout can use what another compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
    ${CCACHE_PROGRAM})
endif()
find_package(Threads REQUIRED)

add_library(firesteel_flags INTERFACE)
target_include_directories(firesteel_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(firesteel_flags INTERFACE -Wall -Wextra -Werror
  # Sums have one defined order and fused multiply-adds are explicit ones only.
  -ffp-contract=off)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # FMA and AVX2 are the floor on x86 (static_assert in ops/cpu/vec.h guards the lanes).
  target_compile_options(firesteel_flags INTERFACE -march=x86-64-v3)
endif()
if(FIRESTEEL_SANITIZE)
  target_compile_options(firesteel_flags INTERFACE -fsanitize=${FIRESTEEL_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(firesteel_flags INTERFACE -fsanitize=${FIRESTEEL_SANITIZE})
endif()

if(FIRESTEEL_FUZZ)
  if(FIRESTEEL_FUZZ STREQUAL "FAST")
    # For many millions of inputs: coverage alone, several times as fast.
    target_compile_options(firesteel_flags INTERFACE -fsanitize-coverage=inline-8bit-counters,pc-table)
  elseif(NOT FIRESTEEL_FUZZ STREQUAL "RANDOM")
    target_compile_options(firesteel_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined
      -fno-sanitize-recover=all)
    target_link_options(firesteel_flags INTERFACE -fsanitize=address,undefined)
  endif()
  add_custom_target(fuzzers)
endif()

# firesteel_library(NAME SOURCES … DEPENDS …)
function(firesteel_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(fs_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(fs_${name} PUBLIC firesteel_flags ${ARG_DEPENDS} Threads::Threads)
endfunction()

add_custom_target(arm64_tests)

# firesteel_test(NAME SOURCES … DEPENDS … [LABELS …] [TIMEOUT s] [BRIEF filter]): one GoogleTest program, one ctest
# entry. BRIEF: the tests that run where everything is 20 to 40 times slower, under qemu and under sanitizers.
function(firesteel_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;BRIEF" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE firesteel_flags ${ARG_DEPENDS} GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE FIRESTEEL_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(CMAKE_CROSSCOMPILING OR FIRESTEEL_SANITIZE)
    set(slow ON)
  else()
    set(slow OFF)
  endif()
  if(slow AND ARG_BRIEF)
    add_test(NAME ${name} COMMAND ${name} --gtest_filter=${ARG_BRIEF})
  else()
    add_test(NAME ${name} COMMAND ${name})
  endif()
  # What must give the same bits on 64-bit Arm runs under qemu as well (scripts/arm64.sh).
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  if(folder MATCHES "^(base|tensor|quant|ops|text)$")
    list(APPEND ARG_LABELS arm64)
  endif()
  if("arm64" IN_LIST ARG_LABELS)
    add_dependencies(arm64_tests ${name})
  endif()
  if(slow)
    set(ARG_TIMEOUT 3600)
  elseif(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

# firesteel_fuzz(NAME SOURCES … DEPENDS …): a libFuzzer program NAME; needs clang and -DFIRESTEEL_FUZZ=ON or FAST. With
# RANDOM a program that makes random inputs itself.
function(firesteel_fuzz name)
  if(NOT FIRESTEEL_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE firesteel_flags ${ARG_DEPENDS})
  if(FIRESTEEL_FUZZ STREQUAL "RANDOM")
    target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/fuzz/random_inputs.cc)
  else()
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endif()
  add_dependencies(fuzzers ${name})
endfunction()

# firesteel_bench(NAME SOURCES … DEPENDS …): a Google Benchmark program.
function(firesteel_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE firesteel_flags ${ARG_DEPENDS} benchmark::benchmark)
endfunction()
