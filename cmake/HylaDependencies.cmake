# Libraries of the tool and the tests; the core library needs none of them.
# Each is looked for as a CMake package and, where a machine has only the headers, as headers.

set(HYLA_APT_fmt libfmt-dev)
set(HYLA_APT_CLI11 libcli11-dev)
set(HYLA_APT_nlohmann_json nlohmann-json3-dev)

function(hyla_require_header_library name header)
  set(target hyla_${name})
  if(TARGET ${target})
    return()
  endif()
  find_package(${name} CONFIG QUIET)
  add_library(${target} INTERFACE)
  if(TARGET ${name}::${name})
    target_link_libraries(${target} INTERFACE ${name}::${name})
    return()
  endif()
  find_path(HYLA_${name}_INCLUDE_DIR ${header})
  mark_as_advanced(HYLA_${name}_INCLUDE_DIR)
  if(NOT HYLA_${name}_INCLUDE_DIR)
    message(
      FATAL_ERROR
        "hyla: the command line tool and the tests need ${name}, which was not found.\n"
        "On Debian or Ubuntu: apt-get install ${HYLA_APT_${name}} "
        "(all three: libfmt-dev libcli11-dev nlohmann-json3-dev), or run scripts/setup.sh.\n"
        "To build the library alone: -DHYLA_BUILD_TOOL=OFF -DHYLA_BUILD_TESTS=OFF")
  endif()
  target_include_directories(${target} SYSTEM INTERFACE "${HYLA_${name}_INCLUDE_DIR}")
  if(name STREQUAL "fmt")
    target_compile_definitions(${target} INTERFACE FMT_HEADER_ONLY=1)
  endif()
endfunction()
