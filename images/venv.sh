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

# The first Python that fits: the cpu lock has wheels for 3.10 to 3.12, the tools run on any from 3.10 on.
find_python() { # find_python "3.11 3.12 3.10"
  local candidate
  for candidate in ${PYTHON:-} python3 python3.11 python3.12 python3.10; do
    case " $1 " in
    *" $("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) "*) command -v "$candidate"; return ;;
    esac
  done
  echo "error: python: none of ${PYTHON:+$PYTHON, }python3, python3.11, python3.12, python3.10 is a Python of $1" >&2
  echo "hint: install one, or name it: PYTHON=/path/to/python" >&2
  return 69
}

make_venv() { # make_venv FOLDER LOCK...: every wheel is compared with the lock's hash
  local folder=$1 lock python supported="3.10 3.11 3.12 3.13 3.14" links=() extra=()
  shift
  case " $* " in *" cpu "*) supported="3.10 3.11 3.12" ;; esac
  python=$(find_python "$supported") || return
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
      --only-binary=:all: "${links[@]}" "${extra[@]}" -r "images/locks/$lock/requirements.txt" || {
      echo "error: images/locks/$lock/requirements.txt: could not be installed into $folder" >&2
      echo "hint: behind a mirror set PIP_INDEX_URL, behind a TLS proxy PIP_CERT; torch's wheel may lie in WHEELHOUSE=DIR" >&2
      return 69
    }
  done
}
