#!/usr/bin/env bash
# Everything that needs a GPU: builds with CUDA, runs the GPU tests, measures the benchmarks and
# writes bench/results/<gpu>.json. Works offline where the tools are already there.
# HYLA_BUILD names a build of these very sources to use instead of making one; HYLA_TEST_SECONDS is
# how long a share of the tests may take (240).
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v nvidia-smi >/dev/null 2>&1 || ! nvidia-smi -L >/dev/null 2>&1; then
  echo "gpu-check: no NVIDIA GPU on this machine" >&2
  exit 1
fi
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
name=$(printf '%s' "$gpu" | tr '[:upper:]' '[:lower:]' | sed 's/^nvidia //; s/[^a-z0-9]\{1,\}/-/g')
echo "gpu-check: $gpu"

# clang-format and the like are no reason to stop here; a missing library stops the configure step.
scripts/setup.sh --check || echo "gpu-check: going on without them"

build=${HYLA_BUILD:-build/cuda}
if [ -z "${HYLA_BUILD:-}" ]; then
  cmake --preset cuda
  cmake --build --preset cuda --parallel "${JOBS:-$(nproc)}"
fi
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

failed=0
if [ -x "$build/tests/hyla_gpu_tests" ]; then
  # The float64 reference on the CPU takes most of the time, so several processes share the GPU.
  shards=$(($(nproc) < 16 ? $(nproc) : 16))
  seconds=${HYLA_TEST_SECONDS:-240}
  pids=()
  for ((i = 0; i < shards; i++)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i timeout -k 5 "$seconds" \
      "$build/tests/hyla_gpu_tests" >"$logs/$i" 2>&1 &
    pids+=($!)
  done
  for ((i = 0; i < shards; i++)); do
    status=0
    wait "${pids[$i]}" || status=$?
    [ "$status" = 0 ] || failed=1
    grep -vE '^\[ +(RUN|OK) |^\[-+\]|^$' "$logs/$i" || true
    if [ "$status" = 124 ] || [ "$status" = 137 ]; then
      # A kernel that does not end must not hide which test called it.
      echo "gpu-check: share $i did not end within $seconds s, in" \
        "$(grep -E '^\[ RUN' "$logs/$i" | tail -n 1 | sed 's/.*\] //'); its slowest tests before:"
      grep -E '^\[       OK' "$logs/$i" | sed -E 's/.*\] (.*) \(([0-9]+) ms\)/\2 ms \1/' | sort -rn | head -n 3
    fi
  done
else
  echo "gpu-check: there are no GPU tests in this build" >&2
  failed=1
fi

# The most unfriendly tensors once more under the memory and race checkers. racecheck does not follow
# hand-overs through mbarriers and barriers of some warps, by which prefill and attention work, and
# reports them as races; their tests compare bits between runs.
if [ "$failed" = 0 ] && command -v compute-sanitizer >/dev/null 2>&1; then
  tools=(memcheck racecheck)
  filters=('*Hostile*:*Captured*' '*Hostile*:*Captured*-GpuPrefill*:GpuAttention*')
  pids=()
  for i in "${!tools[@]}"; do
    compute-sanitizer --tool "${tools[$i]}" --error-exitcode 1 "$build/tests/hyla_gpu_tests" \
      --gtest_brief=1 --gtest_filter="${filters[$i]}" >"$logs/${tools[$i]}" 2>&1 &
    pids+=($!)
  done
  for i in "${!tools[@]}"; do
    wait "${pids[$i]}" || failed=1
    echo "gpu-check: ${tools[$i]}"
    tail -n 40 "$logs/${tools[$i]}"
  done
elif [ "$failed" = 0 ]; then
  echo "gpu-check: not run under compute-sanitizer, which is not here" >&2
fi

digest=$(scripts/sources_digest.sh)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
clock=$(nvidia-smi --query-gpu=clocks.max.sm --format=csv,noheader,nounits | head -n 1)
# COMMIT names the sources where they came without their history.
commit=${COMMIT:-$(git rev-parse --verify -q HEAD 2>/dev/null || echo unknown)}
if [ -z "${COMMIT:-}" ] && [ -n "$(git status --porcelain --untracked-files=no 2>/dev/null)" ]; then commit+=-modified; fi
mkdir -p bench/results
peers=()
if [ -f "bench/peers/$name.json" ]; then peers=(--peers "bench/peers/$name.json"); fi
# cuDNN in the same run, where this machine's Python has torch.
if [ "$failed" = 0 ] && python3 scripts/measure_cudnn.py "$logs/peers.json" "${peers[@]:1}"; then
  peers=(--peers "$logs/peers.json")
fi
raw=$logs/bench.json
if [ "$failed" = 1 ]; then
  echo "gpu-check: not measured, since the tests failed" >&2
elif "$build/bin/hyla" bench --suite gpu,prefill,attention --min-time 0.06 "${peers[@]}" --json "$raw"; then
  python3 scripts/stamp_result.py "$raw" "bench/results/$name.json" "$digest" "$commit" "$gpu" \
    "$driver" "$clock"
else
  echo "gpu-check: the benchmark failed; bench/results is unchanged" >&2
  failed=1
fi

python_status=0
scripts/gpu_python.sh || python_status=$?
if [ "$python_status" != 0 ] && [ "$python_status" != 77 ]; then failed=1; fi

if [ "$failed" = 0 ]; then echo "gpu-check: passed"; else echo "gpu-check: FAILED"; fi
exit "$failed"
