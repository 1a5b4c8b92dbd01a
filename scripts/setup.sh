#!/usr/bin/env bash
# Brings a Debian or Ubuntu machine to the point where hyla builds and its tests run.
#
#   scripts/setup.sh            what the build, the tests and the demo need
#   scripts/setup.sh docs       also Doxygen
#   scripts/setup.sh tidy       also clang-tidy
#   scripts/setup.sh --check    only say what is missing; exit code 1 if anything is
#
# A thing counts as present when it works, whoever installed it: nothing is installed, and no root
# is needed, where nothing is missing.
set -euo pipefail

check_only=0
want_docs=0
want_tidy=0
for argument in "$@"; do
  case "$argument" in
    --check) check_only=1 ;;
    docs) want_docs=1 ;;
    tidy) want_tidy=1 ;;
    *) echo "setup: unknown argument '$argument' (known: docs, tidy, --check)" >&2; exit 2 ;;
  esac
done

have_command() { command -v "$1" >/dev/null 2>&1; }

have_header() {
  have_command g++ && printf '#include <%s>\n' "$1" | g++ -E -x c++ - >/dev/null 2>&1
}

missing=()
need_command() { have_command "$1" || missing+=("$2"); }
need_header() { have_header "$1" || missing+=("$2"); }

# The Python that runs here: one that somebody else installed counts too.
need_python() {
  python3 - "$1" >/dev/null 2>&1 <<'END' || missing+=("$2")
import os, sys, sysconfig
if sys.argv[1] == "venv":
    import ensurepip, venv
else:
    sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), sys.argv[1])))
END
}

need_command g++ g++
need_command cmake cmake
need_command ninja ninja-build
need_command clang-format clang-format
need_command pkg-config pkg-config
need_command python3 python3
need_python venv python3-venv
need_python Python.h python3-dev
need_header gtest/gtest.h libgtest-dev
need_header gmock/gmock.h libgmock-dev
need_header fmt/core.h libfmt-dev
need_header CLI/CLI.hpp libcli11-dev
need_header nlohmann/json.hpp nlohmann-json3-dev
need_header hwy/highway.h libhwy-dev
if [ "$want_docs" = 1 ]; then need_command doxygen doxygen; fi
if [ "$want_tidy" = 1 ]; then need_command clang-tidy clang-tidy; fi

if [ "${#missing[@]}" -gt 0 ]; then
  if [ "$check_only" = 1 ]; then
    echo "setup: missing: ${missing[*]}"
    exit 1
  fi
  if ! have_command apt-get; then
    echo "setup: this machine has no apt-get; install these by other means (Debian names):" >&2
    echo "  ${missing[*]}" >&2
    exit 1
  fi
  as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! have_command sudo; then
      echo "setup: not root and no sudo; as root, run:" >&2
      echo "  apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o=Dpkg::Use-Pty=0 "$@"; }

  echo "setup: installing ${missing[*]}"
  apt update </dev/null || echo "setup: the package lists stay as they are" >&2
  apt install -y --no-install-recommends "${missing[@]}" </dev/null
  # Makes rebuilds quick, is never needed.
  have_command ccache || apt install -y --no-install-recommends ccache </dev/null || true
fi

minimum=3.25
found=$(cmake --version | sed -n 's/^cmake version \([0-9.]*\).*/\1/p')
if [ "$(printf '%s\n%s\n' "$minimum" "$found" | sort -V | head -n 1)" != "$minimum" ]; then
  echo "setup: cmake $found is too old, hyla needs $minimum or newer" >&2
  exit 1
fi
