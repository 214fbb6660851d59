#!/usr/bin/env bash
# What isotune does on this machine's accelerator, with what is installed: JSON on stdout, one line a part on stderr.
#
#   tests/device_check.sh [--dry] [--wheels FOLDER] [--output FILE] [--seconds N]
#
# PYTHON names another interpreter. It needs no network, and ends within six minutes whatever hangs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec timeout --kill-after=5 355 "${PYTHON:-python3}" tests/bench/device_check.py "$@"
