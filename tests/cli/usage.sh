#!/usr/bin/env bash
# Help texts, exit codes, and messages that name what is wrong. usage: usage.sh TOOL
. "$(dirname "$0")/common.bash" || exit 1

# expect CODE PATTERN ARGUMENTS...: exit code, a pattern in what it prints
expect() {
  local code=$1 pattern=$2 got
  shift 2
  "$tool" "$@" >"$work/out" 2>"$work/err" </dev/null
  got=$?
  [ "$got" = "$code" ] || fail "hyla $*: exit code $got instead of $code"
  grep -q -e "$pattern" "$work/out" "$work/err" || fail "hyla $*: nothing says '$pattern'"
}

# refuse PATTERN ARGUMENTS...: exit code 2, one line on stderr with the pattern, nothing on stdout
refuse() {
  local pattern=$1
  shift
  expect 2 "$pattern" "$@"
  [ ! -s "$work/out" ] || fail "hyla $*: writes to stdout though it refuses"
  [ "$(wc -l <"$work/err")" = 1 ] || fail "hyla $*: $(wc -l <"$work/err") lines on stderr, not 1"
}

expect 0 'SUBCOMMAND' --help
expect 0 'Exit code' -h
expect 0 '^hyla [0-9]' --version
for command in info explain check bench replay; do
  expect 0 'Examples:' "$command" --help
done
expect 0 'gdn.decode' info
expect 0 'reference' explain gdn_decode:b=2,hq=1,hv=2,k=8,v=8
expect 0 'checkpoint' explain --keys
expect 0 ', 0 failed, [0-9]* problems drawn' check --random 0.01 norm_gated_rms
expect 0 '1 passed' check norm_gated_rms:b=2,hv=1,v=8,impl=reference --drawn 30064771073
# A step that takes longer than it may is named.
expect 1 'did not end within 0.001 s: gdn_prefill:b=4' check gdn_prefill:b=4,t=512 --limit 0.001

refuse 'subcommand'
refuse 'frobnicate' frobnicate
refuse '--frob' check --frob
refuse 'operation: .*gdn_decoder' check gdn_decoder
refuse 'gdn_decode, gdn_mtp' explain nothing:b=1
refuse 'batch: .*a key of gdn_decode' bench gdn_decode:batch=3
refuse 'k: .*multiple of 8.*100' explain gdn_decode:k=100
refuse 'hv: .*multiple of hq = 3' check gdn_decode:hq=3,hv=4
refuse 'slots: ' check gdn_decode:b=4,slots=3
refuse 'lens: ' check gdn_prefill:lens=4+x
refuse 'impl: .*reference' check gdn_decode:impl=nobody
refuse 'impl: .*reference' bench gdn_decode:b=1,hq=1,hv=1,k=8,v=8,impl=nobody
refuse 'problem: .*GiB' check gdn_decode:b=1048576,hv=1024
refuse 'problem: .*GiB' bench attention_decode:b=16,kvlen=67108864
refuse '--suite: .*quick.*nosuch' check --suite nosuch
refuse '--suite: .*quick.*nosuch' bench --suite nosuch
refuse 'min-time' bench --min-time soon
refuse 'random' check --random soon
refuse 'operation: .*gdn_decoder' check --random 1 gdn_decoder
for share in '' 1 1/ /4 4/4 -1/4 0/0 1/2/3 0/99999999; do
  refuse '--share: .*I/N' check --share="$share"
done
if ! nvidia-smi -L >/dev/null 2>&1; then
  refuse 'device: .*CUDA device for gdn_prefill' check --suite gpu
fi
refuse '--shapes: .*missing' bench --plans --shapes=
for range in 5 5: :5 0:0 -1:5 1:2:3 a:b 0:9999999999999999999; do
  refuse '--shapes: .*FIRST:COUNT' bench --plans --shapes="$range"
done
refuse '--lengths: .*known' bench --plans --lengths=maybe
refuse 'operation: .*gdn_prefill' bench --plans gdn_decode:b=1
refuse 'device: .*cuda' bench --plans gdn_prefill:lens=5
refuse 'PROBLEM' explain
refuse 'FILE' replay
refuse 'file: .*nosuch.hyla' replay "$work/nosuch.hyla"
refuse 'file: ' replay "$work"
refuse '-o FILE' replay --record gdn_decode
refuse 'operation' replay --record gdn_dec -o "$work/x.hyla"
printf 'not a recording' >"$work/text"
refuse 'recorded call' replay "$work/text"

# Nothing is written by a refused command.
refuse 'operation' check nothing --json "$work/no.json"
refuse 'operation' bench nothing --json "$work/no.json" --plot "$work/no.svg"
refuse '--json: .*folder that exists' check gdn_decode:b=1 --json "$work/no/such/folder.json"
refuse '--plot: .*folder that exists' bench gdn_decode:b=1 --plot "$work/no/such/folder.svg"
[ "$(ls "$work")" = "$(printf 'err\nout\ntext')" ] || fail "files left: $(ls "$work" | tr '\n' ' ')"

if ! "$tool" info | grep -q '^  cuda'; then
  refuse 'no CUDA device' check gdn_decode:device=cuda
  refuse 'no CUDA device' bench --suite gpu --json "$work/no.json"
  refuse 'no CUDA device' bench --plans --shapes 3:1
  refuse 'no CUDA device' explain gdn_decode:device=cuda
fi

[ "$failures" = 0 ] || exit 1
