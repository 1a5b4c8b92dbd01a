# Compilers behind ccache where it is found, unless the project has launchers of its own. Paths below
# the sources count as relative ones, so that a clone finds what another has compiled.
find_program(HYLA_CCACHE ccache)
mark_as_advanced(HYLA_CCACHE)
if(HYLA_CCACHE)
  get_filename_component(hyla_root "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
  foreach(language C CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER
          "${CMAKE_COMMAND};-E;env;CCACHE_BASEDIR=${hyla_root};CCACHE_NOHASHDIR=1;${HYLA_CCACHE}")
    endif()
  endforeach()
endif()
