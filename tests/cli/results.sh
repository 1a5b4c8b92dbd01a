#!/usr/bin/env bash
# What check, bench and replay write: tables without control characters in a pipe, JSON that parses
# and has the documented fields, SVG that is XML, recordings that replay. usage: results.sh TOOL
. "$(dirname "$0")/common.bash" || exit 1

small=gdn_decode:b=3,hq=1,hv=2,k=16,v=8
other=conv_update:b=2,hq=1,hv=1,k=8,v=8

plain() { # file: printable text and line ends only
  if LC_ALL=C grep -q '[^[:print:]]' "$1"; then fail "$1 has control characters"; fi
}

python() { # program, arguments: its assertions are ours
  python3 -c "$@" || fail "python: $1"
}

"$tool" check "$small" "$other" --cases 4 --json "$work/check.json" >"$work/check.txt" 2>&1 ||
  fail "check: exit code $?"
plain "$work/check.txt"
grep -q "^$small .*reference .*ok$" "$work/check.txt" || fail "check: no row for $small"
grep -Eq '^([2-9]|1[0-9]) passed, 0 failed$' "$work/check.txt" || fail "check: no summary"
python3 -m json.tool "$work/check.json" >/dev/null || fail "check: bad JSON"
python '
import json, sys
results = json.load(open(sys.argv[1]))["results"]
assert [r["problem"] for r in results if r["impl"] == "reference"] == sys.argv[2:], results
for r in results:
    assert r["ok"] is True and r["problem"] in sys.argv[2:], r
    assert 0 <= r["max_error"] <= r["bound"], r
' "$work/check.json" "$small" "$other"

# JSON on stdout alone: the table goes to stderr.
"$tool" check "$small" --json - 2>"$work/table.txt" | python3 -m json.tool >/dev/null ||
  fail "check --json -: bad JSON"
grep -q "^$small" "$work/table.txt" || fail "check --json -: the table is not on stderr"
"$tool" info --json - | python3 -m json.tool >/dev/null || fail "info --json -: bad JSON"
"$tool" explain "$small" --json - 2>/dev/null | python3 -m json.tool >/dev/null ||
  fail "explain --json -: bad JSON"

"$tool" bench "$small" "$other" --min-time 0.01 --json "$work/bench.json" \
  --plot "$work/bench.svg" >"$work/bench.txt" 2>&1 || fail "bench: exit code $?"
plain "$work/bench.txt"
python '
import json, re, sys
report = json.load(open(sys.argv[1]))
assert set(report) == {"hyla", "commit", "sources_digest", "machine", "date", "results"}, report
assert re.fullmatch(r"\d+\.\d+\.\d+", report["hyla"]), report["hyla"]
assert re.fullmatch(r"unknown|[0-9a-f]{40}(-modified)?", report["commit"]), report["commit"]
assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["date"]), report["date"]
assert {"name", "driver", "cpu"} <= set(report["machine"]), report["machine"]
assert report["machine"]["page_bytes"] >= 4096, report["machine"]
assert [r["problem"] for r in report["results"]] == sys.argv[2:], report["results"]
for r in report["results"]:
    assert set(r) == {"problem", "impl", "us", "limit_us", "ratio", "bytes", "flops", "matrix_flops", "peers",
                      "huge_pages", "best_us"}, r
    assert 0 <= r["huge_pages"] <= 1, r
    assert r["us"] > 0 and r["limit_us"] > 0 and r["bytes"] > 0 and r["flops"] > 0, r
    assert r["ratio"] > 0 and 0 < r["best_us"] <= r["us"], r
# 3 rows, 2 heads of 16 x 8 float32 read and written; q, k of 1 x 16 and v, out of 2 x 8 in bf16.
assert report["results"][0]["bytes"] == 2 * 3 * 2 * 16 * 8 * 4 + 3 * (2 * 16 + 2 * 16) * 2
' "$work/bench.json" "$small" "$other"
"$tool" bench "$small,state=bf16" "$other" --min-time 0 --json "$work/beside.json" \
  >"$work/beside.txt" 2>&1 || fail "bench of a smaller state: exit code $?"
grep -q ' of f32' "$work/beside.txt" || fail "bench of a smaller state: not beside float32"
"$tool" bench "$small" --tiny --min-time 0 --json "$work/tiny.json" >"$work/tiny.txt" 2>&1 ||
  fail "bench --tiny: exit code $?"
grep -q '(tiny).* of ordinary' "$work/tiny.txt" || fail "bench --tiny: not beside ordinary numbers"
python '
import json, sys
beside, tiny = (json.load(open(path))["results"] for path in sys.argv[1:3])
assert beside[0]["beside"]["problem"] == sys.argv[3] and "beside" not in beside[1], beside
assert beside[0]["beside"]["us"] > 0 and beside[0]["beside"]["ratio"] > 0, beside
assert tiny[0]["tiny"] and tiny[0]["beside"]["problem"] == sys.argv[3], tiny
' "$work/beside.json" "$work/tiny.json" "$small"
python '
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
svg = "{http://www.w3.org/2000/svg}"
texts = [t.text for t in root.iter(svg + "text")]
assert root.tag == svg + "svg", root.tag
assert len(list(root.iter(svg + "rect"))) == 1 + 2, "a bar for each result"
for problem in sys.argv[2:]:
    assert any(problem in text for text in texts), problem
' "$work/bench.svg" "$small" "$other"

# A recorded call replays to the bit; a changed one does not.
"$tool" replay --record "$small" -o "$work/call.hyla" >/dev/null || fail "record: exit code $?"
"$tool" replay "$work/call.hyla" --json "$work/replay.json" >"$work/replay.txt" 2>&1 ||
  fail "replay: exit code $?"
plain "$work/replay.txt"
grep -q '^ok: identical' "$work/replay.txt" || fail "replay: not identical"
python '
import json, sys
outcome = json.load(open(sys.argv[1]))
assert outcome["ok"] and outcome["bit_exact"] and outcome["operation"] == "gdn.decode", outcome
assert set(outcome["outputs"]) == {"out", "state"}, outcome
' "$work/replay.json"
"$tool" replay --record "$small" -o "$work/again.hyla" >/dev/null
cmp -s "$work/call.hyla" "$work/again.hyla" || fail "record: two recordings of one problem differ"

# The last byte of the recorded outputs changed, the digest made right again: exit code 1.
python '
import struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
at = len(data.rstrip(b"\0")) - 1
data[at] ^= 1
digest = 0xcbf29ce484222325
for byte in data[24:]:
    digest = ((digest ^ byte) * 0x100000001b3) % 2**64
data[16:24] = struct.pack("<Q", digest)
open(sys.argv[2], "wb").write(data)
' "$work/call.hyla" "$work/changed.hyla"
"$tool" replay "$work/changed.hyla" >"$work/changed.txt" 2>&1
[ $? = 1 ] || fail "replay: a changed output is not exit code 1: $(cat "$work/changed.txt")"
grep -q '^FAILED: .*differs' "$work/changed.txt" || fail "replay: does not say what differs"
head -c 500 "$work/call.hyla" >"$work/cut.hyla"
"$tool" replay "$work/cut.hyla" >"$work/cut.txt" 2>&1
[ $? = 2 ] || fail "replay: a cut file is not exit code 2"
grep -q '^hyla: file: ' "$work/cut.txt" || fail "replay: a cut file is not named"

# Times of others are printed beside those of the same work, however its gates are handed over.
cat >"$work/peers.json" <<END
{"rows": [{"problem": "$small,gate=log", "peer": "slow", "us": 900},
          {"problem": "$small", "peer": "quick", "us": 0.5},
          {"problem": "$small,state=bf16", "peer": "other", "us": 0.1}]}
END
"$tool" bench "$small" --min-time 0 --peers "$work/peers.json" --json "$work/peers_out.json" \
  >"$work/peers.txt" 2>&1 || fail "bench --peers: exit code $?"
grep -q '^gdn_decode.*0\.50* (0\..*x) quick$' "$work/peers.txt" || fail "bench --peers: no best peer"
python 'import json, sys
peers = json.load(open(sys.argv[1]))["results"][0]["peers"]
assert [p["name"] for p in peers] == ["quick", "slow"], peers' "$work/peers_out.json"
"$tool" bench "$small" --min-time 0 --peers "$(dirname "$0")/../../bench/peers/h200.json" \
  >/dev/null 2>&1 || fail "bench --peers: bench/peers/h200.json"
echo '{"rows": [{"problem": "nonsense"}]}' >"$work/bad_peers.json"
for bad in "$work/missing.json" "$work/bad_peers.json"; do
  "$tool" bench "$small" --peers "$bad" >/dev/null 2>&1
  [ $? = 2 ] || fail "bench --peers $bad: not exit code 2"
done

# On a terminal there is a progress bar; in a pipe, above, there was none.
# Some containers have no pseudo-terminals to give.
if command -v script >/dev/null && script --version 2>/dev/null | grep -q util-linux &&
  script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
  script -qec "'$tool' check $small $other" /dev/null >"$work/terminal.txt" 2>&1 </dev/null
  grep -q -F '[############............] 1/2' "$work/terminal.txt" || fail "no bar on a terminal"
fi

[ "$failures" = 0 ] || exit 1
