#!/bin/sh
# Runs a Python script that you do not trust: no network, no files of yours, small limits.
#
#   examples/script.sh FILE [ARG]...
#
# The exit status is the script's; 124 when its time is over, 137 when it needs too much memory.
set -eu
file=$1
shift
exec airlock run --timeout 10s --memory 128M --pids 16 --input script.py="$file" -- \
    python3 script.py "$@"
