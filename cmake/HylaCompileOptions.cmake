# Everything here is limited to hyla's own targets: a project that adds hyla with add_subdirectory
# keeps its own flags.

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  endif()
  include("${CMAKE_CURRENT_LIST_DIR}/HylaCcache.cmake")
endif()

set(HYLA_HOST_WARNINGS -Wall -Wextra -Wpedantic -Wshadow)
# nvcc writes line markers that -Wpedantic refuses, so CUDA files go without it.
set(HYLA_CUDA_WARNINGS -Xcompiler=-Wall,-Wextra,-Wshadow)
if(HYLA_WERROR)
  list(APPEND HYLA_HOST_WARNINGS -Werror)
  list(APPEND HYLA_CUDA_WARNINGS -Xcompiler=-Werror --Werror=all-warnings)
endif()

set(HYLA_SANITIZER_FLAGS)
if(HYLA_SANITIZE)
  set(HYLA_SANITIZER_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=all
                           -fno-omit-frame-pointer)
elseif(HYLA_SANITIZE_THREADS)
  set(HYLA_SANITIZER_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
endif()

# Language standard, warnings, visibility and sanitizers for one target of ours.
function(hyla_target_defaults target)
  set_target_properties(
    ${target}
    PROPERTIES CXX_STANDARD 20
               CXX_STANDARD_REQUIRED ON
               CXX_EXTENSIONS OFF
               CUDA_STANDARD 20
               CUDA_STANDARD_REQUIRED ON
               CUDA_EXTENSIONS OFF
               C_STANDARD 11
               C_STANDARD_REQUIRED ON
               C_EXTENSIONS OFF
               POSITION_INDEPENDENT_CODE ON
               C_VISIBILITY_PRESET hidden
               CXX_VISIBILITY_PRESET hidden
               CUDA_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON
               # The static CUDA runtime is linked by name (HylaCuda): the choice is then the same
               # for every language that happens to drive the link.
               CUDA_RUNTIME_LIBRARY None
               LINKER_LANGUAGE CXX)
  target_compile_options(
    ${target} PRIVATE "$<$<COMPILE_LANGUAGE:C,CXX>:${HYLA_HOST_WARNINGS}>"
                      "$<$<COMPILE_LANGUAGE:CUDA>:${HYLA_CUDA_WARNINGS}>")
  if(HYLA_SANITIZER_FLAGS)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:C,CXX>:${HYLA_SANITIZER_FLAGS}>")
    target_link_options(${target} PRIVATE ${HYLA_SANITIZER_FLAGS})
  endif()
endfunction()

# All sources below a folder; the CUDA ones when CUDA is built. A new file needs no edit.
function(hyla_glob result folder)
  set(patterns "${PROJECT_SOURCE_DIR}/${folder}/*.cpp")
  if(HYLA_HAS_CUDA)
    list(APPEND patterns "${PROJECT_SOURCE_DIR}/${folder}/*.cu")
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${patterns})
  set(${result} ${sources} PARENT_SCOPE)
endfunction()
