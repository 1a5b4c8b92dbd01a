# The command line tool. It links the static form of the library, so one file can be copied about.

include(HylaDependencies)
hyla_require_header_library(CLI11 CLI/CLI.hpp)

hyla_glob(hyla_tool_sources tools/hyla)
if(hyla_tool_sources)
  add_executable(hyla_cli ${hyla_tool_sources})
  hyla_target_defaults(hyla_cli)
  hyla_target_cuda(hyla_cli)
  set_target_properties(hyla_cli PROPERTIES OUTPUT_NAME hyla RUNTIME_OUTPUT_DIRECTORY
                                                             "${PROJECT_BINARY_DIR}/bin")
  target_include_directories(hyla_cli PRIVATE "${PROJECT_SOURCE_DIR}/tools/hyla")
  target_link_libraries(hyla_cli PRIVATE hyla_testing hyla_internal hyla_CLI11)
  # Looked up by every build, so that a result never carries the commit of an older one.
  add_custom_target(
    hyla_commit
    COMMAND "${CMAKE_COMMAND}" -DSOURCE=${PROJECT_SOURCE_DIR}
            -DOUTPUT=${PROJECT_BINARY_DIR}/generated/hyla_commit.h -P
            "${PROJECT_SOURCE_DIR}/cmake/HylaCommit.cmake"
    BYPRODUCTS "${PROJECT_BINARY_DIR}/generated/hyla_commit.h"
    VERBATIM)
  add_dependencies(hyla_cli hyla_commit)
  target_include_directories(hyla_cli PRIVATE "${PROJECT_BINARY_DIR}/generated")
endif()
