#!/usr/bin/env bash
# Builds and tests everything this machine can, then says in one table what passed.
#
# Each step writes a log under build/logs; the log is shown when the step fails. A failed step does
# not stop the others, only those that need what it would have built.
set -uo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-$(nproc)}
logs=build/logs
mkdir -p "$logs"
export CTEST_PARALLEL_LEVEL="$jobs"

steps=()
verdicts=()
notes=()
passed=0
failed=0

record() { # step, verdict, note
  steps+=("$1")
  verdicts+=("$2")
  notes+=("$3")
}

# Runs a step as one test of its own.
step() { # name, command...
  local name=$1 log started=$SECONDS
  log=$logs/$(tr -cs '[:alnum:]' - <<<"$name" | sed 's/-$//').log
  shift
  printf '%-28s ' "$name"
  if "$@" >"$log" 2>&1 </dev/null; then
    echo "ok      $((SECONDS - started)) s"
    record "$name" ok "$((SECONDS - started)) s"
    return 0
  fi
  echo "FAILED  $((SECONDS - started)) s, the end of $log:"
  tail -n 60 "$log" | sed 's/^/    /'
  record "$name" FAILED "see $log"
  failed=$((failed + 1))
  return 1
}

# Runs a set of ctest tests; each counts.
tests() { # name, preset, ctest arguments...
  local name=$1 preset=$2 log started=$SECONDS line total bad
  log=$logs/$(tr -cs '[:alnum:]' - <<<"$name" | sed 's/-$//').log
  shift 2
  printf '%-28s ' "$name"
  local status=0
  ctest --preset "$preset" --timeout 600 "$@" >"$log" 2>&1 </dev/null || status=$?
  line=$(grep -E '^[0-9]+% tests passed' "$log" | tail -n 1)
  total=$(sed -n 's/.* out of \([0-9]*\)$/\1/p' <<<"$line")
  bad=$(sed -n 's/.*, \([0-9]*\) tests\{0,1\} failed .*/\1/p' <<<"$line")
  bad=${bad:-0} # newer ctest leaves a zero out
  if [ "$status" = 0 ] && [ -n "$total" ] && [ "$bad" = 0 ]; then
    passed=$((passed + total))
    echo "ok      $total tests, $((SECONDS - started)) s"
    record "$name" ok "$total tests, $((SECONDS - started)) s"
    return 0
  fi
  if [ -z "$total" ] && grep -q '^No tests were found' "$log"; then
    echo "none"
    record "$name" none "there are no such tests yet"
    return 0
  fi
  if [ -z "$total" ]; then
    total=1 bad=1 # ctest itself did not get through
  fi
  passed=$((passed + total - bad))
  failed=$((failed + (bad > 0 ? bad : 1)))
  echo "FAILED  $bad of $total tests, $((SECONDS - started)) s:"
  # What the failed tests said, then their names.
  grep -v -E ' (Passed|\*\*\*Skipped) +[0-9.]+ sec$|^ +Start ' "$log" |
    tail -n 120 | sed 's/^/    /'
  record "$name" FAILED "$bad of $total tests, see $log"
  return 1
}

# Runs a folder of pytest tests; each counts.
pytests() { # name, arguments...
  local name=$1 log started=$SECONDS status=0 line good bad
  log=$logs/$(tr -cs '[:alnum:]' - <<<"$name" | sed 's/-$//').log
  shift
  printf '%-28s ' "$name"
  build/venv/bin/python -m pytest "$@" >"$log" 2>&1 </dev/null || status=$?
  line=$(grep -E ' in [0-9.]+s' "$log" | tail -n 1)
  good=$(grep -oE '[0-9]+ passed' <<<"$line" | cut -d' ' -f1)
  bad=$(grep -oE '[0-9]+ (failed|errors?)' <<<"$line" | awk '{ sum += $1 } END { print sum + 0 }')
  passed=$((passed + ${good:-0}))
  if [ "$status" = 0 ] && [ "${good:-0}" -gt 0 ]; then
    echo "ok      $good tests, $((SECONDS - started)) s"
    record "$name" ok "$good tests, $((SECONDS - started)) s"
    return 0
  fi
  failed=$((failed + (bad > 0 ? bad : 1)))
  echo "FAILED  $bad of $((${good:-0} + bad)) tests, $((SECONDS - started)) s, the end of $log:"
  tail -n 120 "$log" | sed 's/^/    /'
  record "$name" FAILED "$bad tests, see $log"
  return 1
}

not_run() { # name, why
  printf '%-28s not run: %s\n' "$1" "$2"
  record "$1" FAILED "not run: $2"
  failed=$((failed + 1))
}

build() { cmake --preset "$1" && cmake --build --preset "$1" --parallel "$jobs"; }

demo() { build/release/bin/hyla demo; }

without_gpu=()
if ! nvidia-smi -L >/dev/null 2>&1; then without_gpu=(-LE '^gpu$'); fi

if step "build release" build release; then
  tests "unit and operation tests" release -L '^(unit|ops|cpu)$'
  tests "C11, examples, compile-fail" release -L '^(capi|example|compile_fail)$'
  tests "command line and install" release -L '^(cli|install)$'
  if [ -d tools/hyla ]; then step "demo" demo && passed=$((passed + 1)); fi
  if [ "${#without_gpu[@]}" = 0 ]; then tests "GPU tests" release -L '^gpu$'; fi
  tests "repository checks" release -L '^check$'
  if step "Python package" scripts/python_env.sh; then
    pytests "Python tests" python/tests
  else
    not_run "Python tests" "the package was not built"
  fi
else
  not_run "release tests" "the build failed"
fi
if step "build with sanitizers" build asan; then
  tests "the same under ASan, UBSan" asan -L '^(unit|ops|cpu|capi|example)$'
else
  not_run "tests under ASan, UBSan" "the build failed"
fi
# The CPU kernels over the compiler's vectors, and their threads where the sanitizer sees them.
build_cpu_tests() {
  cmake --preset tsan && cmake --build --preset tsan --target hyla_cpu_tests --parallel "$jobs"
}
if step "build with thread sanitizer" build_cpu_tests; then
  tests "CPU kernels under TSan" tsan -L '^cpu$'
else
  not_run "CPU kernels under TSan" "the build failed"
fi

cuda=$(sed -n 's/^-- hyla .*: CUDA \(.*\), CPU .*/\1/p' "$logs/build-release.log" | tail -n 1)

echo
echo "summary"
for i in "${!steps[@]}"; do
  printf '  %-28s %-7s %s\n' "${steps[$i]}" "${verdicts[$i]}" "${notes[$i]}"
done
echo "  CUDA kernels compiled: ${cuda:-unknown}"
python3 scripts/gpu_status.py | sed 's/^/  /'
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
