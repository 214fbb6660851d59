# Sourced by quickstart.sh and test.sh, in the repository's root: make a virtual environment from committed locks.
# shellcheck shell=bash

# The torch wheel of the cpu lock on this disk, where pip would look for it; prints its folder, or nothing.
local_torch_folder() {
  local version folder
  version=$(sed -n 's/^torch==\([^ ;]*\).*/\1/p' images/locks/cpu/requirements.txt)
  for folder in "${WHEELHOUSE:-}" ${PIP_FIND_LINKS:-} $(python3 -m pip config get global.find-links 2>/dev/null); do
    if compgen -G "$folder/torch-$version-*.whl" >/dev/null; then echo "$folder"; return; fi
  done
}

# covered LOCK PYTHON: can this Python be served from the lock? The cpu lock names its Pythons, and the torch wheels
# whose hash nobody has told it; the tools run on any Python from 3.10 on.
covered() {
  local version tag
  version=$("$2" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || return 1
  if [ "$1" = tools ]; then "$2" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; return; fi
  grep -q "^- '$version'$" "images/locks/$1/lock.yaml" || return 1
  tag=cp${version/./}
  ! awk -v tag="$tag" -v machine="$(uname -m)" '
      /^- distribution:/ { python = architecture = "" }
      /^  python:/ { python = $2 }
      /^  architecture:/ { architecture = $2 }
      /^  sha256: unresolved/ && python == tag && architecture == machine { found = 1 }
      END { exit !found }' "images/locks/$1/lock.yaml"
}

find_python() { # find_python LOCK: the first Python that the lock can serve
  local candidate
  for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.10}; do
    if command -v "$candidate" >/dev/null && covered "$1" "$candidate"; then command -v "$candidate"; return; fi
  done
  echo "error: images/locks/$1: cannot serve ${PYTHON:-python3, python3.11, python3.12 or python3.10} on this machine" >&2
  echo "hint: install Python 3.11 or 3.12, or name one: PYTHON=/path/to/python; or use a Docker Engine" >&2
  return 69
}

make_venv() { # make_venv FOLDER LOCK...: every wheel is compared with the lock's hash
  local folder=$1 lock python strictest=tools links=() extra=()
  shift
  case " $* " in *" cpu "*) strictest=cpu ;; esac
  python=$(find_python $strictest) || return
  if [ -x "$folder/bin/python" ] && ! covered $strictest "$folder/bin/python"; then
    echo "error: $folder: was made with a Python that images/locks/$strictest cannot serve" >&2
    echo "hint: remove it, or name another folder: VENV=DIR" >&2
    return 78
  fi
  [ -x "$folder/bin/python" ] || "$python" -m venv "$folder" || {
    echo "error: $python -m venv $folder failed" >&2
    echo "hint: on Debian and Ubuntu: apt-get install python3-venv" >&2
    return 69
  }
  for lock in "$@"; do
    links=() extra=()
    if [ "$lock" = cpu ]; then
      local torch_folder
      torch_folder=$(local_torch_folder)
      if [ -n "$torch_folder" ]; then
        links=(--find-links "$torch_folder")
      else
        extra=(--extra-index-url "$(sed -n 's/^ *index: *\(http[^ ]*\).*/\1/p' images/backends/cpu.yaml | head -1)")
      fi
    fi
    "$folder/bin/python" -m pip install -qq --disable-pip-version-check --require-hashes --no-deps \
      --only-binary=:all: ${links[@]+"${links[@]}"} ${extra[@]+"${extra[@]}"} -r "images/locks/$lock/requirements.txt" || {
      echo "error: images/locks/$lock/requirements.txt: could not be installed into $folder" >&2
      echo "hint: behind a mirror set PIP_INDEX_URL, behind a TLS proxy PIP_CERT; torch's wheel may lie in WHEELHOUSE=DIR" >&2
      return 69
    }
  done
}
