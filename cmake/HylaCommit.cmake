# Run by every build of the tool (cmake -P): writes OUTPUT with the commit and the digest of the
# kernel sources of SOURCE, and leaves it alone where nothing changed, so that nothing is rebuilt.

set(commit unknown)
set(digest "")
find_program(git git)
if(git)
  execute_process(COMMAND "${git}" -C "${SOURCE}" rev-parse HEAD OUTPUT_VARIABLE found
                  RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed)
    set(commit "${found}")
    execute_process(COMMAND "${git}" -C "${SOURCE}" status --porcelain --untracked-files=no
                    OUTPUT_VARIABLE changes ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(changes)
      string(APPEND commit "-modified")
    endif()
  endif()
endif()
find_program(bash bash)
if(bash)
  execute_process(COMMAND "${bash}" "${SOURCE}/scripts/sources_digest.sh" OUTPUT_VARIABLE found
                  RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed)
    set(digest "${found}")
  endif()
endif()

set(text "#define HYLA_BUILD_COMMIT \"${commit}\"\n#define HYLA_BUILD_SOURCES_DIGEST \"${digest}\"\n")
set(old "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" old)
endif()
if(NOT text STREQUAL old)
  file(WRITE "${OUTPUT}" "${text}")
endif()
