#!/usr/bin/env bash
# The demo: what it promises in its summary, its options, its exit codes. usage: demo.sh TOOL
. "$(dirname "$0")/common.bash" || exit 1

# demo CODE ARGUMENTS...
demo() {
  local code=$1 got
  shift
  "$tool" demo "$@" >"$work/out" 2>"$work/err" </dev/null
  got=$?
  [ "$got" = "$code" ] || fail "hyla demo $*: exit code $got instead of $code: $(cat "$work/err")"
}

says() { grep -q -E -e "$1" "$work/out" "$work/err" || fail "nothing says '$1'"; }
silent() { ! grep -q -E -e "$1" "$work/out" "$work/err" || fail "something says '$1'"; }

# The last number that stands before a word of a line that begins with another.
number() { sed -n "s/^$1 .*[^0-9]\([0-9][0-9]*\) $2.*/\1/p" "$work/out"; }

demo 0 --requests 7 --device cpu
says '^device +CPU, float32'
says '^ran +attention.run +by [a-z]'
says '^served +7 requests'
says '^verified +7 of 7 requests, [1-9][0-9]* tokens, max logit difference .* \(bound .*\)$'
says '^slots .* 0 at the end'
says '^pages .* 0 at the end'
says '^serving +100 %' # plain lines in a pipe
silent $'\r'
[ "$(number served mixed)" -gt 0 ] || fail "no step mixes prompts and decode rows"
[ "$(number tokens reused)" -gt 0 ] || fail "no prefix is reused"
accepted=$(number drafts accepted) proposed=$(sed -n 's/^drafts  *\([0-9]*\) proposed.*/\1/p' "$work/out")
[ "$accepted" -gt 0 ] || fail "no draft is accepted"
[ "$accepted" -lt "$proposed" ] || fail "no draft is rejected"

# Drafts change who is in a step, never how much is generated.
tokens=$(number verified tokens)
demo 0 --requests 7 --drafts 0 --device cpu --quiet
says '^drafts +0 proposed'
silent '^serving'
[ "$(number verified tokens)" = "$tokens" ] || fail "without drafts $(number verified tokens) tokens, not $tokens"

demo 0 --requests 1 --seed 7 --drafts 7 --quiet
says '^verified +1 of 1 requests'

# Wherever it runs by itself.
demo 0 --requests 2 --quiet
says '^verified +2 of 2 requests'
demo 0 --requests 2 --device cpu --dtype bfloat16 --quiet
says '^device +CPU, bfloat16'
says '^verified +2 of 2 requests'

demo 0 --help
says 'Examples:'
for wrong in '--requests 0' '--drafts 8' '--drafts -1' '--seed x' '--frob' '--device gpu' '--dtype f16' 'gdn_decode'; do
  demo 2 $wrong
  [ ! -s "$work/out" ] || fail "hyla demo $wrong: writes to stdout though it refuses"
done

[ "$failures" = 0 ] || exit 1
