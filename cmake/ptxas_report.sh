#!/usr/bin/env bash
# Compiles a CUDA file and keeps what ptxas says of its kernels (registers, spills) beside the
# object, for the test that looks for spills. Everything else that the compiler says is passed on.
set -uo pipefail

report=/dev/null
previous=
for argument in "$@"; do
  if [ "$previous" = -o ]; then report=$argument.ptxas; fi
  previous=$argument
done
said=$("$@" 2>&1)
status=$?
pattern='^ptxas info|^ *[0-9]+ bytes stack frame|^ptxas *$'
printf '%s\n' "$said" | grep -E "$pattern" >"$report"
printf '%s\n' "$said" | grep -v -E "$pattern" | grep . >&2
exit "$status"
