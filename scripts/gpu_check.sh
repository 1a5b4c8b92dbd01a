#!/usr/bin/env bash
# Everything that needs a GPU: builds with CUDA, runs the GPU tests and `hyla check --suite gpu`, the
# memory checkers over some of them, measures the benchmarks and writes bench/results/<gpu>.json.
# Works offline where the tools are already there.
# HYLA_BUILD names a build of these very sources to use instead of making one; HYLA_TEST_SECONDS is
# how long a single test, or a share of the check, may take (240).
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
tests=$build/tests/hyla_gpu_tests
tool=$build/bin/hyla
seconds=${HYLA_TEST_SECONDS:-240}
# The float64 reference on the CPU takes most of the time, so several processes share the GPU.
workers=$(($(nproc) < 16 ? $(nproc) : 16))
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

failed=0
if [ -x "$tests" ] && [ -x "$tool" ]; then
  export tests tool seconds logs
  # One line a job: a test by its name, or a share of the check. A kernel that does not end must not
  # hide which test called it, so each is a process with a time limit.
  job() {
    local name=$1 status=0 began=$SECONDS
    export OMP_NUM_THREADS=1
    case $name in
    check/*) timeout -k 5 "$seconds" "$tool" check --suite gpu --cases 3 --share "${name#check/}" \
      --trace --json "$logs/check.${name//\//.}.json" ;;
    *) timeout -k 5 "$seconds" "$tests" --gtest_filter="$name" ;;
    esac >"$logs/${name//\//.}.log" 2>"$logs/${name//\//.}.err" </dev/null || status=$?
    echo "$status $((SECONDS - began)) $name"
  }
  export -f job
  began=$SECONDS
  # The slow ones first, so that the last one to end is a short one.
  slow='(GpuPrefill|GpuDecodeOf|GpuRows|GpuFarPools|GpuAttentionWidened|GpuBlockOf|GpuConv)'
  "$tests" --gtest_list_tests | awk '/^[^ ]/ { suite = $1 } /^  / { print suite $1 }' >"$logs/names"
  for ((i = 0; i < workers; i++)); do echo "check/$i/$workers"; done >"$logs/shares"
  {
    grep -E "$slow" "$logs/names" || true
    cat "$logs/shares"
    grep -vE "$slow" "$logs/names" || true
  } | xargs -P "$workers" -I{} bash -c 'job {}' >"$logs/done"
  total=$(wc -l <"$logs/names")
  echo "gpu-check: $total tests and $workers shares of hyla check in $((SECONDS - began)) s; the slowest:"
  sort -k 2 -rn "$logs/done" | head -n 5 | awk '{ print "  " $2 " s  " $3 }'
  while read -r status _ what; do
    [ "$status" = 0 ] && continue
    failed=1
    file=$logs/${what//\//.}
    if [ "$status" = 124 ] || [ "$status" = 137 ]; then
      echo "gpu-check: $what did not end within $seconds s: $(tail -n 1 "$file.err")"
    else
      echo "gpu-check: $what failed ($status)"
    fi
    grep -vE '^\[ +(RUN|OK) |^\[[-=]+\]|^$|  ok$' "$file.log" | tail -n 40 || true
    tail -n 3 "$file.err"
  done <"$logs/done"
  [ "$(wc -l <"$logs/done")" = $((total + workers)) ] || failed=1
  # Every CUDA implementation of the tables must have had a problem to solve.
  python3 scripts/sum_checks.py "$tool" "$logs"/check.*.json || failed=1
else
  echo "gpu-check: there are no GPU tests or no tool in this build" >&2
  failed=1
fi
# The most unfriendly tensors once more under the checkers of memory, barriers and races. racecheck
# does not follow a hand-over through an mbarrier at which one lane arrives for its warp, by which
# prefill and attention work, and reports it as a race; their tests compare bits between runs.
# initcheck does not see what the copy engine writes; instead every workspace begins as NaN.
if [ "$failed" = 0 ] && command -v compute-sanitizer >/dev/null 2>&1; then
  export HYLA_EXACT_MEMORY=1
  began=$SECONDS
  shares=$(((workers + 2) / 3))
  sanitize() { # tool, share
    local filter='*Hostile*:*Captured*' status=0
    if [ "$1" = racecheck ]; then filter+='-GpuPrefill*:GpuAttention*'; fi
    GTEST_TOTAL_SHARDS=$shares GTEST_SHARD_INDEX=$2 timeout -k 5 "$seconds" compute-sanitizer \
      --tool "$1" --error-exitcode 1 "$tests" --gtest_filter="$filter" >"$logs/$1.$2" 2>&1 </dev/null ||
      status=$?
    echo "$status $1.$2"
  }
  export -f sanitize
  export shares
  for tool_name in memcheck synccheck racecheck; do
    for ((i = 0; i < shares; i++)); do echo "$tool_name $i"; done
  done | xargs -P "$workers" -L 1 bash -c 'sanitize "$1" "$2"' - >"$logs/sanitized"
  unset HYLA_EXACT_MEMORY
  for tool_name in memcheck synccheck racecheck; do
    echo "gpu-check: $tool_name: $(cat "$logs/$tool_name".* | grep -c '^\[       OK') tests," \
      "$(grep -h SUMMARY "$logs/$tool_name".* | sed 's/^=* //' | sort | uniq -c | tr -s ' \n' ' ')"
  done
  while read -r status what; do
    [ "$status" = 0 ] && continue
    failed=1
    echo "gpu-check: $what failed ($status), in $(grep -E '^\[ RUN' "$logs/$what" | tail -n 1)"
    grep -v '^\[' "$logs/$what" | tail -n 40
  done <"$logs/sanitized"
  [ "$(wc -l <"$logs/sanitized")" = $((3 * shares)) ] || failed=1
  echo "gpu-check: compute-sanitizer took $((SECONDS - began)) s"
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
