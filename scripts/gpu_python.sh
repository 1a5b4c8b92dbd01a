#!/usr/bin/env bash
# The GPU half of the Python tests, over the library in build/cuda or $HYLA_BUILD, with the Python of
# this machine: nothing is installed. Exit code 77 is "cannot tell on this machine".
#
#   scripts/gpu_python.sh [FILE]...      tests of these files only, and no benchmark
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
export PYTHONPATH=$PWD/$package OMP_NUM_THREADS=2

# Most of the time goes into importing frameworks (transformers: 20 s where nothing of it has been
# read before, most of it in what its models import), so the parts run beside each other.
parts=("$@")
if [ $# = 0 ]; then
  parts=(python/tests/gpu/test_cuda.py python/tests/gpu/test_compat_cuda.py
    python/tests/gpu/test_arrays_cuda.py python/tests/test_examples.py)
  if "$python" -c 'import importlib.util as i, sys; sys.exit(not i.find_spec("transformers"))'; then
    parts+=(python/tests/test_transformers.py)
  else
    echo "gpu-check: no tests under transformers, which $python lacks" >&2
  fi
fi
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
pids=()
for i in "${!parts[@]}"; do
  "$python" -m pytest -m gpu -p no:cacheprovider "${parts[$i]}" >"$logs/$i" 2>&1 &
  pids+=($!)
done
failed=0
for i in "${!parts[@]}"; do
  wait "${pids[$i]}" || failed=1
  echo "gpu-check: ${parts[$i]}"
  tail -n 60 "$logs/$i"
done
[ $# = 0 ] || exit "$failed"
"$python" python/bench/overhead.py --rounds 200
"$python" python/bench/overhead.py --rounds 200 --device cuda --more
exit "$failed"
