# Decides whether the CUDA kernels are built, and sets HYLA_HAS_CUDA and HYLA_CUDA_SUMMARY.
# No GPU and no driver is needed to build: only nvcc and the toolkit's static runtime.

# CUDA part of a target of ours; nothing where CUDA is not built.
function(hyla_target_cuda target)
  if(NOT HYLA_HAS_CUDA)
    return()
  endif()
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
  target_compile_definitions(${target} PRIVATE HYLA_HAS_CUDA=1)
  target_compile_options(
    ${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-lineinfo>")
  # ptxas' word on registers and spills is kept beside each object, where a test reads it.
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>")
  set(launcher bash "${PROJECT_SOURCE_DIR}/cmake/ptxas_report.sh" ${CMAKE_CUDA_COMPILER_LAUNCHER})
  set_target_properties(${target} PROPERTIES CUDA_COMPILER_LAUNCHER "${launcher}")
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endfunction()

set(HYLA_CUDA_MINIMUM 13.0) # kernels have more than 48 KiB of static shared memory

string(TOUPPER "${HYLA_CUDA}" hyla_cuda_wish)
if(hyla_cuda_wish MATCHES "^(TRUE|YES|1)$")
  set(hyla_cuda_wish ON)
elseif(hyla_cuda_wish MATCHES "^(FALSE|NO|0)$")
  set(hyla_cuda_wish OFF)
elseif(NOT hyla_cuda_wish MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "hyla: HYLA_CUDA must be AUTO, ON or OFF, not '${HYLA_CUDA}'")
endif()

set(HYLA_HAS_CUDA OFF)
set(HYLA_CUDA_SUMMARY OFF)
if(hyla_cuda_wish STREQUAL "OFF")
  return()
endif()

if(CMAKE_CUDA_COMPILER)
  set(HYLA_NVCC "${CMAKE_CUDA_COMPILER}")
else()
  find_program(HYLA_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda
               PATH_SUFFIXES bin)
  mark_as_advanced(HYLA_NVCC)
endif()

set(reason)
if(NOT HYLA_NVCC)
  set(reason "nvcc was not found (set CUDACXX, or put nvcc on PATH)")
else()
  execute_process(COMMAND "${HYLA_NVCC}" --version OUTPUT_VARIABLE banner ERROR_QUIET)
  if(NOT banner MATCHES "release ([0-9]+\\.[0-9]+)")
    set(reason "${HYLA_NVCC} --version does not answer")
  elseif(CMAKE_MATCH_1 VERSION_LESS HYLA_CUDA_MINIMUM)
    set(reason "${HYLA_NVCC} is ${CMAKE_MATCH_1}, hyla needs ${HYLA_CUDA_MINIMUM} or newer")
  endif()
endif()
if(reason)
  if(hyla_cuda_wish STREQUAL "ON")
    message(FATAL_ERROR "hyla: HYLA_CUDA=ON, but ${reason}")
  endif()
  message(STATUS "hyla: no CUDA kernels: ${reason}")
  set(HYLA_CUDA_SUMMARY "OFF (${reason})")
  return()
endif()

set(CMAKE_CUDA_COMPILER "${HYLA_NVCC}")
# Set before the language is enabled: CMake's compiler check would otherwise try its own default,
# which newer toolkits no longer know.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "${HYLA_CUDA_ARCHITECTURES}")
endif()
if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER AND NOT DEFINED ENV{CUDAHOSTCXX})
  set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know that nvcc speaks C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)

set(HYLA_HAS_CUDA ON)
set(HYLA_CUDA_SUMMARY "ON (nvcc ${CMAKE_CUDA_COMPILER_VERSION}, ${CMAKE_CUDA_ARCHITECTURES})")
