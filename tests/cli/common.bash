# What the command line tests share: the tool in $tool, a folder for files in $work, and failures that
# are counted, so that one run names all of them.
set -uo pipefail
tool=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}
