#!/usr/bin/env bash
# The GPU half of the Python tests, over the library in build/cuda or $HYLA_BUILD, with the Python of
# this machine: nothing is installed. Exit code 77 is "cannot tell on this machine".
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
if ! "$python" -c 'import nanobind, torch, pytest, hypothesis, ml_dtypes' >/dev/null 2>&1; then
  echo "gpu-check: no Python tests: $python lacks nanobind, torch, pytest, hypothesis or ml_dtypes" >&2
  exit 77
fi
cmake -S python -B build/gpu-python -G Ninja -DHYLA_PREBUILT="${HYLA_BUILD:-build/cuda}" \
  -DPython_EXECUTABLE="$(command -v "$python")" --log-level=WARNING
cmake --build build/gpu-python --parallel "${JOBS:-$(nproc)}"

# The package as it would be installed, without touching the sources.
package=build/gpu-python/package
rm -rf "$package"
mkdir -p "$package"
cp -r python/hyla "$package/"
rm -f "$package"/hyla/*.so*
cp build/gpu-python/_core*.so "$package/hyla/"
PYTHONPATH=$PWD/$package "$python" -m pytest python/tests/gpu
PYTHONPATH=$PWD/$package "$python" python/bench/overhead.py --device cuda
