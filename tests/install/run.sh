#!/usr/bin/env bash
# Installs a build into a new place, moves it, and uses it from outside: headers, find_package,
# pkg-config, the tool. Says which step failed and shows what it printed.
#
#   run.sh BUILD_FOLDER
set -euo pipefail

build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step() { # what, command...
  local what=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    echo "ok: $what"
  else
    echo "FAILED: $what"
    echo "command: $*"
    sed 's/^/    /' "$work/log"
    exit 1
  fi
}

step "install" cmake --install "$build" --prefix "$work/first"
# No path of the build machine may be left inside.
mv "$work/first" "$work/prefix"
prefix=$work/prefix

library=$(find "$prefix" -name 'libhyla.so' -o -name 'libhyla.a' | head -n 1)
package=$(find "$prefix" -name hyla-config.cmake)
pc=$(find "$prefix" -name hyla.pc)
step "the library is installed" test -n "$library"
step "hyla-config.cmake is installed" test -n "$package"
step "hyla.pc is installed" test -n "$pc"
step "version.h is installed" test -f "$prefix/include/hyla/version.h"

export LD_LIBRARY_PATH="$(dirname "$library")"
export PKG_CONFIG_PATH="$(dirname "$pc")"

no_cuda_needed() { ! ldd "$library" | grep -E 'libcuda|libcudart'; }
case "$library" in *.so) step "the library needs no CUDA library to load" no_cuda_needed ;; esac

# Each header alone, without CUDA; two are kernels and say so.
alone() {
  local header status=0
  for header in "$prefix"/include/hyla/*.h; do
    case "$(basename "$header")" in recurrence_kernel_device.h | attention_rows_kernel.h) continue ;; esac
    echo "#include <hyla/$(basename "$header")>" |
      c++ -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I "$prefix/include" -x c++ - || status=1
  done
  return $status
}
step "every public header compiles alone" alone

alone_in_c() {
  local header flags=(-std=c11 -pedantic -Wall -Wextra -Werror -fsyntax-only)
  for header in version.h c_api.h; do
    printf '#include <hyla/%s>\nint not_empty;\n' "$header" |
      cc "${flags[@]}" -I "$prefix/include" -x c - || return 1
  done
}
step "the C headers are C11" alone_in_c

step "find_package: configure" cmake -S "$here/consumer" -B "$work/consumer" -G Ninja \
  "-DCMAKE_PREFIX_PATH=$prefix"
step "find_package: build" cmake --build "$work/consumer"
step "find_package: run" "$work/consumer/consumer"
cat "$work/log"

static=
case "$library" in *.a) static=--static ;; esac
step "pkg-config: find" pkg-config --exists hyla
flags=$(pkg-config $static --cflags --libs hyla)
# shellcheck disable=SC2086
step "pkg-config: build in C" cc -std=c11 -pedantic -Wall -Wextra -Werror \
  "$here/consumer.c" $flags -o "$work/c_consumer"
step "pkg-config: run" "$work/c_consumer"
cat "$work/log"

if [ -x "$prefix/bin/hyla" ]; then step "the tool runs" "$prefix/bin/hyla" --help; fi
echo "install: all good"
