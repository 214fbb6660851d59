#!/bin/bash
# Sets the environment of the base image's vendor and writable folders for any user, then becomes its arguments.
# Not `set -eu`: vendors' scripts read unset variables and end with failing tests.

# activate SCRIPT...  [-- ARGUMENT...]: source the first script that exists; none is no fault here, doctor tells.
activate() {
  local script found=""
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ -z "$found" ] && [ -f "$1" ] && found=$1
    shift
  done
  shift
  # stdout belongs to the command that follows.
  [ -z "$found" ] || source "$found" "$@" >&2
}

# An empty entry in a search path means the working folder: a file there could stand in for a library.
without_empty_entries() {
  local entry result="" IFS=:
  for entry in $1; do [ -z "$entry" ] || result=${result:+$result:}$entry; done
  printf '%s' "$result"
}

# With --read-only and no tmpfs only /dev/shm and the mounts can be written.
first_writable() {
  local folder
  for folder in "$@"; do
    if [ -n "$folder" ] && [ -d "$folder" ] && [ -w "$folder" ] && [ -x "$folder" ]; then printf '%s' "$folder"; return; fi
  done
  printf '/tmp'
}

source /opt/isotune/activate.sh

for variable in PYTHONPATH LD_LIBRARY_PATH; do
  [ -z "${!variable+set}" ] || export "$variable=$(without_empty_entries "${!variable}")"
done

scratch=$(first_writable "${TMPDIR:-}" /tmp /var/tmp /dev/shm /workspace)
[ "$scratch" = /tmp ] || export TMPDIR=$scratch
# An unknown uid gets `/` as home: nothing can be written there.
[ "${HOME:-/}" != / ] && [ -w "${HOME:-/}" ] || export HOME=$scratch
for pair in ${scratch_folders:-}; do
  variable=${pair%%=*}
  export "$variable=${!variable:-$scratch/isotune/${pair#*=}}"
  mkdir -p "${!variable}" || echo "warning: $variable: ${!variable} cannot be made; let it name a folder that can be written" >&2
done
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-$HOME/.cache}
export HF_HOME=${HF_HOME:-$XDG_CACHE_HOME/huggingface}
export MPLCONFIGDIR=${MPLCONFIGDIR:-$XDG_CACHE_HOME/matplotlib}
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$XDG_CACHE_HOME/torchinductor}
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$XDG_CACHE_HOME/triton}
# Python's getpass, which torch asks, fails for a uid without a name unless this is set.
export LOGNAME=${LOGNAME:-${USER:-isotune}}

[ $# -gt 0 ] || set -- train --help
exec "$@"
