# Compiles SOURCE (syntax only) and compares what the compiler says with the file's first lines:
#
#   // expect: <regex>     the compilation fails and its output matches (CMake's regex dialect)
#   // lines: <n>          optional second line: exactly n lines of the output contain "error:"
#
# A file called ok_*.cpp must compile: it keeps its failing siblings honest about the reason.

# What the compiler said is printed on its own: message(FATAL_ERROR) would wrap its lines.

get_filename_component(name "${SOURCE}" NAME)
execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env LC_ALL=C "${COMPILER}" -std=c++20 -fsyntax-only
          -fno-diagnostics-color "-I${INCLUDES}" "${SOURCE}"
  RESULT_VARIABLE status
  OUTPUT_VARIABLE output
  ERROR_VARIABLE output)

if(name MATCHES "^ok_")
  if(NOT status EQUAL 0)
    message("${output}")
    message(FATAL_ERROR "${name} must compile")
  endif()
  return()
endif()

# Read as one text, cut by hand: file(STRINGS) would split at semicolons and brackets.
file(READ "${SOURCE}" text LIMIT 4096)
if(NOT text MATCHES "^// expect: ([^\n]+)\n")
  message(FATAL_ERROR "${name}: the first line must be '// expect: <regex>'")
endif()
set(expected "${CMAKE_MATCH_1}")
set(lines)
if(text MATCHES "^[^\n]*\n// lines: ([0-9]+)\n")
  set(lines "${CMAKE_MATCH_1}")
endif()

if(status EQUAL 0)
  message(FATAL_ERROR "${name} compiled, but must fail with: ${expected}")
endif()
if(NOT output MATCHES "${expected}")
  message("${output}")
  message(FATAL_ERROR "${name} failed, but not with: ${expected}")
endif()
if(NOT lines STREQUAL "")
  string(REGEX MATCHALL "error:" errors "${output}")
  list(LENGTH errors count)
  if(NOT count EQUAL lines)
    message("${output}")
    message(FATAL_ERROR "${name}: ${count} error lines, expected ${lines}")
  endif()
endif()
