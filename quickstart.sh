#!/usr/bin/env bash
# The whole road in one command: render every backend, verify, fine-tune with LoRA and with OFT.
#
#   ./quickstart.sh                                    in containers where a Docker Engine answers, else in .venv
#   ./quickstart.sh --with-engine | --no-engine        one of the two, or an error
#   ./quickstart.sh --with-engine -- BUILD-OPTIONS...  for `build.py --backend cpu`, such as --base-image REF
#
# VENV, RESULTS, WHEELHOUSE, PYTHON name other folders, wheels and interpreters. Nothing else is written, but for
# images/rendered where a spec has changed, and the image.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
VENV=${VENV:-.venv}
RESULTS=${RESULTS:-quickstart-results}
IMAGE=isotune:cpu
OFFLINE_BASE=isotune-base:cpu # where no registry answers, a local image of this name is the base, and this is said
# A small pretrained model answers in sentences; the rows teach it to answer with cards, on facts that it knows.
SET=(--config cards)

say() { printf '== %s\n' "$*"; }
fail() { # fail CODE WHAT HINT
  printf 'error: %s\nhint: %s\n' "$2" "$3" >&2
  exit "$1"
}

mode=auto
while [ $# -gt 0 ]; do
  case $1 in
  --with-engine) mode=engine ;;
  --no-engine) mode=venv ;;
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
  --) shift; break ;;
  *) fail 64 "quickstart.sh: unknown option $1" "./quickstart.sh --help" ;;
  esac
  shift
done
build_options=("$@")
if [ $mode = venv ] && [ $# -gt 0 ]; then
  fail 64 "quickstart.sh: $1: build options have no effect with --no-engine" "leave them out, or use --with-engine"
fi

engine_answers() { command -v docker >/dev/null && docker info >/dev/null 2>&1; }
if [ $mode = auto ]; then
  if engine_answers; then mode=engine; else
    say "no Docker Engine answers: running in a virtual environment instead; start Docker for the containers"
    mode=venv
  fi
elif [ $mode = engine ] && ! engine_answers; then
  fail 69 "quickstart.sh: no Docker Engine answers" "start Docker or set DOCKER_HOST; or ./quickstart.sh --no-engine"
fi
if [ -e "$RESULTS" ]; then
  fail 78 "$RESULTS: exists already" "remove it, or name another folder: RESULTS=DIR ./quickstart.sh"
fi

. images/venv.sh

# --- in containers ------------------------------------------------------------------------------------------------

wants() { case " ${build_options[*]:-} " in *" $1"[\ =]*) return 1 ;; *) return 0 ;; esac; }

choose_build_options() {
  local torch_folder
  # The host's network: the build reaches what the host reaches. Only the plain docker driver allows it unasked.
  if wants --network && docker buildx inspect 2>/dev/null | grep -q '^Driver: *docker$'; then build_options+=(--network host); fi
  if wants --ca-bundle && [ -f "${SSL_CERT_FILE:-}" ]; then build_options+=(--ca-bundle "$SSL_CERT_FILE"); fi
  torch_folder=$(local_torch_folder)
  if wants --wheelhouse && [ -n "$torch_folder" ]; then build_options+=(--wheelhouse "$torch_folder"); fi
  if wants --base-image && ! base_is_reachable; then
    if docker image inspect "$OFFLINE_BASE" >/dev/null 2>&1; then
      say "the registry of the base image does not answer: the local image $OFFLINE_BASE is the base instead"
      build_options+=(--base-image "$OFFLINE_BASE")
    fi
  fi
}

base_is_reachable() {
  local base
  base=$(sed -n 's/^ARG BASE_IMAGE=//p' images/rendered/cpu/Dockerfile)
  docker image inspect "$base" >/dev/null 2>&1 || timeout 20 docker buildx imagetools inspect "$base" >/dev/null 2>&1
}

# No network, nothing to write to but /tmp and the mounts, and a user that no system knows.
contained() { docker run --rm --network none --read-only --tmpfs /tmp --user 12345:0 "$@"; }

run_in_containers() {
  local id name
  choose_build_options
  "$VENV/bin/python" build.py --backend cpu ${build_options[@]+"${build_options[@]}"}
  # Volumes, not bind mounts: they work with an engine on another host too, and leave no file of another user here.
  # A new one takes the rights of the image's /out, which any uid of group 0 may write.
  inputs=$(docker volume create) outputs=$(docker volume create)
  trap 'docker volume rm -f "$inputs" "$outputs" >/dev/null' EXIT
  contained -v "$inputs:/out" $IMAGE train make-tiny --kind text --pretrained --output /out/model
  id=$(docker create -v "$inputs:/out" $IMAGE)
  for name in cards cards-eval; do docker cp -q "train/samples/$name.jsonl" "$id:/out/$name.jsonl"; done
  docker rm "$id" >/dev/null
  mkdir -p "$RESULTS"
  say "verify"
  contained $IMAGE train verify --json >"$RESULTS/verify.json"
  for name in lora oft; do
    say "$name"
    contained -v "$inputs:/data:ro" -v "$outputs:/out" $IMAGE train --adapter $name \
      --model /data/model --data /data/cards.jsonl --eval-data /data/cards-eval.jsonl --output /out/$name "${SET[@]}"
    contained -v "$inputs:/data:ro" -v "$outputs:/out:ro" $IMAGE python -c "$LOADS" /data/model /out/$name/adapter
  done
  id=$(docker create -v "$outputs:/out" $IMAGE)
  docker cp -q "$id:/out/." "$RESULTS" && docker rm "$id" >/dev/null
}

# --- in the virtual environment -----------------------------------------------------------------------------------

run_in_venv() {
  local name
  "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-index --no-build-isolation --editable .
  "$VENV/bin/python" build.py build-info --backend cpu --prefix "$VENV"
  mkdir -p "$RESULTS"
  "$VENV/bin/train" make-tiny --kind text --pretrained --output "$RESULTS/model"
  say "verify"
  "$VENV/bin/train" verify --json >"$RESULTS/verify.json"
  for name in lora oft; do
    say "$name"
    "$VENV/bin/train" --adapter $name --model "$RESULTS/model" --data train/samples/cards.jsonl \
      --eval-data train/samples/cards-eval.jsonl --output "$RESULTS/$name" "${SET[@]}"
    "$VENV/bin/python" -c "$LOADS" "$RESULTS/model" "$RESULTS/$name/adapter"
  done
}

LOADS='
import sys
from peft import PeftModel
from transformers import AutoModelForCausalLM
from transformers.utils import logging
logging.disable_progress_bar()
PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(sys.argv[1]), sys.argv[2])
print("the adapter loads with plain PEFT")'

say "the environment $VENV from the lock"
if [ $mode = engine ]; then make_venv "$VENV" tools; else make_venv "$VENV" tools cpu; fi
say "render"
"$VENV/bin/python" build.py render
if [ $mode = engine ]; then run_in_containers; else run_in_venv; fi
"$VENV/bin/python" images/summary.py "$RESULTS"
