# find_package(hyla), pkg-config and the files they speak of.

include(CMakePackageConfigHelpers)

set(hyla_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/hyla")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
# What hyla/attention_prefill.h and attention_decode.h include, for programs that link hyla::kernels.
foreach(folder arch core device ops/attention ops/attention_decode ops/attention_prefill)
  file(GLOB headers "${PROJECT_SOURCE_DIR}/src/${folder}/*.cuh" "${PROJECT_SOURCE_DIR}/src/${folder}/*.h")
  if(folder STREQUAL core)
    set(headers "${PROJECT_SOURCE_DIR}/src/core/views.h")
  endif()
  if(folder STREQUAL ops/attention)
    set(headers "${PROJECT_SOURCE_DIR}/src/ops/attention/operand_queries.cuh")
  endif()
  list(FILTER headers EXCLUDE REGEX "/(kv_rows|byte_rows|widened_.*|widening|launch_widen.*|launch_prefill|launch_.*instances|launch_decode|plan)\\.(h|cuh)$") # built-in caches
  install(FILES ${headers} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/hyla/kernels/${folder}")
endforeach()
install(TARGETS hyla_kernels EXPORT hyla-targets)
install(TARGETS hyla EXPORT hyla-targets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
                                         ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(TARGET hyla_cli)
  install(TARGETS hyla_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

install(EXPORT hyla-targets NAMESPACE hyla:: DESTINATION "${hyla_package_dir}")

set(HYLA_STATIC_NEEDS_CUDA OFF)
if(NOT BUILD_SHARED_LIBS AND HYLA_HAS_CUDA)
  set(HYLA_STATIC_NEEDS_CUDA ON)
endif()
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/hyla-config.cmake.in" "${PROJECT_BINARY_DIR}/hyla-config.cmake"
  INSTALL_DESTINATION "${hyla_package_dir}")
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/hyla-config-version.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/hyla-config.cmake"
              "${PROJECT_BINARY_DIR}/hyla-config-version.cmake"
        DESTINATION "${hyla_package_dir}")

# Paths relative to the .pc file, so that an installed tree can be moved.
file(RELATIVE_PATH hyla_pc_up "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" HYLA_PC_PREFIX "\${pcfiledir}/${hyla_pc_up}")
set(HYLA_PC_PRIVATE_LIBS "-lstdc++ -lm -pthread")
if(HYLA_HAS_OPENMP)
  string(APPEND HYLA_PC_PRIVATE_LIBS " ${OpenMP_CXX_FLAGS}")
endif()
if(HYLA_STATIC_NEEDS_CUDA)
  string(APPEND HYLA_PC_PRIVATE_LIBS " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/hyla.pc.in" "${PROJECT_BINARY_DIR}/hyla.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/hyla.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
