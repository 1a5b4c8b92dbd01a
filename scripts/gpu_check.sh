#!/usr/bin/env bash
# Everything that needs a GPU: builds with CUDA, runs the GPU tests, `hyla check --suite gpu` and the
# example with an operand of its own, the memory checkers over some of them, measures the benchmarks
# and writes bench/results/<gpu>.json, then runs the Python half. Wrong kernels are not measured. The
# results do not depend on Python, so they stay whatever comes of it, and say what did.
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
query() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits | head -n 1; }
driver=$(query driver_version)
max_sm_clock=$(query clocks.max.sm)
max_memory_clock=$(query clocks.max.mem)
echo "gpu-check: $gpu, driver $driver, clocks up to $max_sm_clock MHz, memory $max_memory_clock MHz"

# clang-format and the like are no reason to stop here; a missing library stops the configure step.
scripts/setup.sh --check || echo "gpu-check: going on without them"

build=${HYLA_BUILD:-build/cuda}
if [ -z "${HYLA_BUILD:-}" ]; then
  cmake --preset cuda
  cmake --build --preset cuda --parallel "${JOBS:-$(nproc)}"
fi
tests=$build/tests/hyla_gpu_tests
tool=$build/bin/hyla
for program in "$tests" "$tool"; do
  if [ ! -x "$program" ]; then
    echo "gpu-check: there is no $program in this build" >&2
    exit 1
  fi
done
examples=()
for example in user_operand_cuda recurrence_kernel; do
  if [ -x "$build/examples/example_$example" ]; then
    examples+=("$example")
  else
    echo "gpu-check: the example $example does not run, it is not in this build" >&2
  fi
done
# What is measured must be what is here, and that is known before anything is.
python3 scripts/check_digest.py "$tool" "$(scripts/sources_digest.sh)"
seconds=${HYLA_TEST_SECONDS:-240}
# A process mostly waits, for the driver and for the reference on the CPU, so several share the GPU.
workers=$(($(nproc) < 16 ? $(nproc) : 16))
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

failed=0
export tests tool build seconds logs
# One line a job: a test by its name, a share of the check, or an example. A kernel that does not end
# must not hide which test called it, so each is a process with a time limit.
job() {
  local name=$1 status=0 began=$SECONDS
  export OMP_NUM_THREADS=1
  case $name in
  check/*) timeout -k 5 "$seconds" "$tool" check --suite gpu --cases 3 --share "${name#check/}" \
    --trace --json "$logs/check.${name//\//.}.json" ;;
  # A build that was carried here has its library where the loader would not look.
  example/*) LD_LIBRARY_PATH=$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout -k 5 "$seconds" \
    "$build/examples/example_${name#example/}" ;;
  *) timeout -k 5 "$seconds" "$tests" --gtest_filter="$name" ;;
  esac >"$logs/${name//\//.}.log" 2>"$logs/${name//\//.}.err" </dev/null || status=$?
  echo "$status $((SECONDS - began)) $name"
}
export -f job
began=$SECONDS
# The slow ones first, so that the last one to end is a short one.
slow='(GpuPrefill|GpuDecodeOf|GpuRows|GpuAttentionWidened|GpuBlockOf|GpuConv)'
"$tests" --gtest_list_tests | awk '/^[^ ]/ { suite = $1 } /^  / { print suite $1 }' >"$logs/names"
for ((i = 0; i < workers; i++)); do echo "check/$i/$workers"; done >"$logs/shares"
printf '%s\n' "${examples[@]/#/example/}" | grep . >"$logs/examples" || true
{
  grep -E "$slow" "$logs/names" || true
  cat "$logs/shares" "$logs/examples"
  grep -vE "$slow" "$logs/names" || true
} | xargs -P "$workers" -I{} bash -c 'job {}' >"$logs/done"
total=$(wc -l <"$logs/names")
echo "gpu-check: $total tests, $workers shares of hyla check and ${#examples[@]} examples in" \
  "$((SECONDS - began)) s; the slowest:"
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
[ "$(wc -l <"$logs/done")" = $((total + workers + ${#examples[@]})) ] || failed=1
for example in "${examples[@]}"; do sed 's/^/  /' "$logs/example.$example.log"; done
# Every CUDA implementation of the tables must have had a problem to solve.
summary=$(python3 scripts/sum_checks.py "$tool" "$logs"/check.*.json) || failed=1
echo "$summary"
# The most unfriendly tensors once more under the checkers of memory, barriers and races. racecheck
# does not follow a hand-over through an mbarrier at which one lane arrives for its warp, by which
# prefill and attention work, and reports it as a race; their tests compare bits between runs.
# initcheck does not see what the copy engine writes; instead every workspace begins as NaN.
sanitized=''
if [ "$failed" = 0 ] && command -v compute-sanitizer >/dev/null 2>&1; then
  export HYLA_EXACT_MEMORY=1
  began=$SECONDS
  shares=$(((workers + 2) / 3))
  sanitize() { # tool, share
    local filter='*Hostile*:*Captured*' status=0
    if [ "$1" = racecheck ]; then filter+='-GpuPrefill*:GpuAttention*'; fi
    # A process without a test calls no CUDA function, which compute-sanitizer takes for an error.
    if [ "$("$tests" --gtest_list_tests --gtest_filter="$filter" | grep -c '^  ')" -le "$2" ]; then
      : >"$logs/$1.$2"
      echo "0 $1.$2"
      return
    fi
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
    count=$(cat "$logs/$tool_name".* | grep -c '^\[       OK') || true
    sanitized+="${sanitized:+, }$tool_name $count tests"
    echo "gpu-check: $tool_name: $count tests," \
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

# Once more: nothing may have changed meanwhile.
digest=$(scripts/sources_digest.sh)
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
stamp() { # what came of the Python half
  python3 scripts/stamp_result.py "$raw" "bench/results/$name.json" "$digest" "$commit" \
    machine.name="$gpu" machine.driver="$driver" machine.max_sm_clock_mhz="$max_sm_clock" \
    machine.max_memory_clock_mhz="$max_memory_clock" machine.sm_clock_mhz_after="$clock" \
    machine.celsius_before="$celsius" machine.celsius_after="$celsius_after" \
    checks.tests="$total tests and ${#examples[@]} examples passed" checks.hyla_check="$summary" \
    checks.sanitizers="${sanitized:-not run}" checks.prefill_plans="$plans" checks.python="$1"
}
measured=0
celsius=$(query temperature.gpu)
if [ "$failed" = 1 ]; then
  echo "gpu-check: not measured, since the tests failed; bench/results is unchanged" >&2
elif "$tool" bench --suite gpu,prefill,attention --min-time 0.06 "${peers[@]}" --json "$raw"; then
  clock=$(query clocks.sm)
  celsius_after=$(query temperature.gpu)
  echo "gpu-check: $clock MHz after the benchmark; $celsius degrees before it, $celsius_after after"
  # How often the cost model of prefill chooses well, of random shapes whose lengths the host knows:
  # those that everybody has, and others that nothing was fitted to.
  plans=''
  for seed in 1 "$(date -u +%Y%m%d)"; do
    line=$("$tool" bench --plans --lengths host --seed "$seed" | grep '^all shapes: ') || {
      line=failed failed=1
      echo "gpu-check: the plans of seed $seed failed"
    }
    plans+="${plans:+; }seed $seed, ${line%%: gdn*}"
  done
  echo "gpu-check: plans of prefill: $plans"
  if stamp "not run"; then measured=1; else failed=1; fi
else
  echo "gpu-check: the benchmark failed; bench/results is unchanged" >&2
  failed=1
fi

python=passed
scripts/gpu_python.sh || python="failed ($?)"
if [ "$python" = "failed (77)" ]; then
  python="not run"
elif [ "$python" != passed ]; then
  echo "gpu-check: the Python half $python"
  failed=1
fi
if [ "$measured" = 1 ]; then stamp "$python" || failed=1; fi

if [ "$failed" = 0 ]; then echo "gpu-check: passed"; else echo "gpu-check: FAILED"; fi
exit "$failed"
