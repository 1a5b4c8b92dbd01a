#!/usr/bin/env bash
# One number for the sources of the CUDA kernels. It stands in every GPU result, so that a result
# can be told from one of older kernels. This file is the only list of what counts.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

list() {
  local folder
  for folder in src/arch src/device src/ops; do
    if [ -d "$folder" ]; then
      find "$folder" -type f '(' -name '*.cu' -o -name '*.cuh' -o -name '*.h' -o -name '*.cpp' ')'
    fi
  done
  # Public headers with device code, which users' kernels and ours share.
  grep -rlsE '__global__|__device__|HYLA_HOST_DEVICE' include/hyla || true
}

# Name and content of each, so that a rename counts too.
list | sort | while IFS= read -r file; do sha256sum "$file"; done | sha256sum | cut -d ' ' -f 1
