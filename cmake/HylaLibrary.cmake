# libhyla, and the same objects as a static library for tests and the tool, which reach behind the
# public symbols. Every source is compiled once.

hyla_glob(hyla_sources src)
if(NOT hyla_sources)
  message(FATAL_ERROR "hyla: no sources under ${PROJECT_SOURCE_DIR}/src")
endif()

find_package(Threads REQUIRED)

add_library(hyla_objects OBJECT ${hyla_sources})
hyla_target_defaults(hyla_objects)
target_include_directories(hyla_objects PRIVATE "${PROJECT_SOURCE_DIR}/include"
                                                "${PROJECT_SOURCE_DIR}/src")
target_compile_definitions(hyla_objects PRIVATE HYLA_BUILDING_LIBRARY=1)

hyla_target_cuda(hyla_objects)
hyla_target_cpu(hyla_objects)

set(hyla_link_libraries Threads::Threads ${HYLA_CPU_LIBRARIES})
if(HYLA_HAS_CUDA)
  list(APPEND hyla_link_libraries CUDA::cudart_static)
endif()

add_library(hyla $<TARGET_OBJECTS:hyla_objects>)
add_library(hyla::hyla ALIAS hyla)
hyla_target_defaults(hyla)
target_include_directories(
  hyla PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
              "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_compile_features(hyla INTERFACE cxx_std_20)
target_link_libraries(hyla PRIVATE ${hyla_link_libraries})
set_target_properties(hyla PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION
                                      ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
if(BUILD_SHARED_LIBS AND NOT APPLE)
  # Symbols of the CUDA runtime inside the library must not clash with another copy in the process.
  target_link_options(hyla PRIVATE LINKER:--exclude-libs,ALL)
  if(NOT HYLA_SANITIZER_FLAGS) # the sanitizer runtime is only resolved in the final program
    target_link_options(hyla PRIVATE LINKER:--no-undefined)
  endif()
endif()

# The sources of kernels that a user's operand is compiled into (hyla/attention_prefill.h, attention_decode.h).
add_library(hyla_kernels INTERFACE)
add_library(hyla::kernels ALIAS hyla_kernels)
set_target_properties(hyla_kernels PROPERTIES EXPORT_NAME kernels)
target_include_directories(
  hyla_kernels INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>"
                         "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/hyla/kernels>")
target_link_libraries(hyla_kernels INTERFACE hyla)

add_library(hyla_internal STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:hyla_objects>)
hyla_target_defaults(hyla_internal)
target_include_directories(hyla_internal PUBLIC "${PROJECT_SOURCE_DIR}/include"
                                                "${PROJECT_SOURCE_DIR}/src")
target_compile_features(hyla_internal INTERFACE cxx_std_20)
target_link_libraries(hyla_internal PUBLIC ${hyla_link_libraries})
if(HYLA_HAS_CUDA)
  target_compile_definitions(hyla_internal INTERFACE HYLA_HAS_CUDA=1)
endif()
