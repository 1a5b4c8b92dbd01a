# testing/: random tensors, guarded buffers and the problem grammar, for the tool and the tests.

include(HylaDependencies)
hyla_require_header_library(fmt fmt/core.h)
hyla_require_header_library(nlohmann_json nlohmann/json.hpp)

hyla_glob(hyla_testing_sources testing)
if(hyla_testing_sources)
  add_library(hyla_testing STATIC ${hyla_testing_sources})
  hyla_target_defaults(hyla_testing)
  hyla_target_cuda(hyla_testing)
  set(scope PUBLIC)
else()
  add_library(hyla_testing INTERFACE)
  set(scope INTERFACE)
endif()
# Headers are included as "testing/name.h".
target_include_directories(hyla_testing ${scope} "${PROJECT_SOURCE_DIR}")
target_link_libraries(hyla_testing ${scope} hyla_internal hyla_fmt hyla_nlohmann_json)
