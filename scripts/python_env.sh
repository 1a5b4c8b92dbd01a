#!/usr/bin/env bash
# The virtual environment build/venv with what the Python package's build and tests need, and the
# package itself over the library in build/release. Does nothing that has been done before.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
environment=build/venv
wanted=$(cat python/requirements.txt - < <("$python" --version) | sha256sum)
stamp=$environment/.hyla-requirements
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  rm -rf "$environment"
  "$python" -m venv "$environment"
  # uv fetches in parallel: 20 s instead of 90. pip does the same where it cannot be had.
  if "$environment/bin/pip" install --quiet uv &&
    "$environment/bin/uv" pip install --quiet --python "$environment/bin/python" \
      -r python/requirements.txt; then
    :
  else
    "$environment/bin/pip" install --quiet -r python/requirements.txt
  fi
  echo "$wanted" >"$stamp"
fi

"$environment/bin/pip" install --quiet --no-deps --no-build-isolation --force-reinstall . \
  --config-settings=cmake.define.HYLA_PREBUILT=build/release \
  --config-settings=cmake.define.HYLA_PYTHON_WERROR=ON
