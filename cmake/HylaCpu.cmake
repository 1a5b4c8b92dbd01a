# What the CPU kernels are built with: Highway (headers only) and OpenMP, each where it is found and
# wanted. Without them the kernels use the compiler's vectors, and one thread.

set(HYLA_CPU_LIBRARIES)
set(HYLA_HAS_HIGHWAY OFF)
if(HYLA_HIGHWAY)
  find_path(HYLA_HIGHWAY_INCLUDE_DIR hwy/highway.h)
  mark_as_advanced(HYLA_HIGHWAY_INCLUDE_DIR)
  if(HYLA_HIGHWAY_INCLUDE_DIR)
    set(HYLA_HAS_HIGHWAY ON)
  endif()
endif()
set(HYLA_HAS_OPENMP OFF)
if(HYLA_OPENMP)
  find_package(OpenMP QUIET COMPONENTS CXX)
  if(OpenMP_CXX_FOUND)
    set(HYLA_HAS_OPENMP ON)
    set(HYLA_CPU_LIBRARIES OpenMP::OpenMP_CXX)
  endif()
endif()
set(HYLA_CPU_SUMMARY "Highway ${HYLA_HAS_HIGHWAY} OpenMP ${HYLA_HAS_OPENMP}")
if(HYLA_OTHER_CPUS)
  string(APPEND HYLA_CPU_SUMMARY " other CPUs ON")
endif()

function(hyla_target_cpu target)
  if(HYLA_HAS_HIGHWAY)
    target_include_directories(${target} SYSTEM PRIVATE "${HYLA_HIGHWAY_INCLUDE_DIR}")
    target_compile_definitions(${target} PRIVATE HYLA_HAS_HIGHWAY=1)
  endif()
  if(HYLA_OTHER_CPUS)
    target_compile_definitions(${target} PRIVATE HYLA_OTHER_CPUS=1)
  endif()
  if(HYLA_HAS_OPENMP)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${OpenMP_CXX_FLAGS}>")
  endif()
endfunction()

# A product and a sum are one rounding only where the code says so: left to the compiler, the bits of
# an element could depend on the loop that it falls into. GCC 12 takes the undefined lanes of its own
# AVX-512 intrinsics for a mistake, and loops over groups of four for longer than their arrays.
file(GLOB hyla_cpu_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/cpu/*.cpp")
set(hyla_cpu_flags -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND hyla_cpu_flags -Wno-maybe-uninitialized -Wno-stringop-overflow)
endif()
set_source_files_properties(${hyla_cpu_sources} PROPERTIES COMPILE_OPTIONS "${hyla_cpu_flags}")
# The same mistake under another name, where the thread sanitizer keeps GCC from inlining.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set_property(SOURCE "${PROJECT_SOURCE_DIR}/src/cpu/attention_kernel.cpp"
               "${PROJECT_SOURCE_DIR}/src/cpu/gdn_rows_kernel.cpp"
               "${PROJECT_SOURCE_DIR}/src/cpu/merge_kernel.cpp" APPEND
               PROPERTY COMPILE_OPTIONS -Wno-uninitialized)
endif()
