# Every file under examples/ is a program of its own against the public library, and a test.

file(GLOB hyla_examples CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/*.cpp"
     "${PROJECT_SOURCE_DIR}/examples/*.c")
foreach(source IN LISTS hyla_examples)
  get_filename_component(stem "${source}" NAME_WE)
  get_filename_component(extension "${source}" LAST_EXT)
  set(name example_${stem})
  if(extension STREQUAL ".c")
    set(name example_c_${stem})
  endif()
  add_executable(${name} "${source}")
  hyla_target_defaults(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                                           "${PROJECT_BINARY_DIR}/examples")
  target_link_libraries(${name} PRIVATE hyla::hyla)
  if(HYLA_BUILD_TESTS)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS example TIMEOUT 120)
  endif()
endforeach()
