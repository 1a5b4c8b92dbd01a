#!/usr/bin/env bash
# Formats hyla's C, C++ and CUDA files; with --check only says which are not formatted. Exit code 77
# is "cannot tell on this machine".
set -euo pipefail
cd "$(dirname "$0")/.."

# Releases of clang-format disagree about C++20; one is the judge.
judge=14
tool=
for candidate in "clang-format-$judge" clang-format; do
  if command -v "$candidate" >/dev/null 2>&1; then
    tool=$candidate
    break
  fi
done
if [ -z "$tool" ]; then
  echo "format: clang-format was not found; run scripts/setup.sh" >&2
  exit 77
fi
version=$("$tool" --version | sed -n 's/.*version \([0-9]*\).*/\1/p')

patterns=('*.c' '*.cpp' '*.cu' '*.cuh' '*.h')
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  list() { git ls-files -z --cached --others --exclude-standard -- "${patterns[@]}"; }
else
  list() {
    find bench examples include python src testing tests tools -type f \
      '(' -name '*.c' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h' ')' \
      -print0 2>/dev/null || true
  }
fi
files=()
while IFS= read -r -d '' file; do
  if [ -f "$file" ]; then files+=("$file"); fi # git still lists a deleted file
done < <(list)
if [ "${#files[@]}" = 0 ]; then
  echo "format: no files"
  exit 0
fi

if [ "${1:-}" = --check ]; then
  if [ "$version" != "$judge" ]; then
    echo "format: skipped, $tool is version $version and the rules are for version $judge"
    exit 77
  fi
  "$tool" --style=file --dry-run -Werror "${files[@]}"
  echo "format: ${#files[@]} files, all formatted"
else
  if [ "$version" != "$judge" ]; then
    echo "format: warning: $tool is version $version, the check uses version $judge" >&2
  fi
  "$tool" --style=file -i "${files[@]}"
  echo "format: ${#files[@]} files"
fi
