#!/bin/sh
# Lets a command work on a folder, shows what it changed as a patch, and applies that if you agree.
#
#   examples/folder.sh DIR COMMAND [ARG]...
#
# The folder stays as it is until you answer `y`. Protected names, such as .envrc, never arrive.
set -eu
dir=$1
shift
id=folder-$$
airlock run --workspace "$dir" --copy-on-write --run-id "$id" -- "$@"
if ! airlock workspace list --json | jq -e --arg id "$id" 'any(.workspaces[]; .id == $id)' >/dev/null; then
    echo "nothing was changed" >&2
    exit 0
fi
airlock workspace diff --patch "$id"
printf 'apply these changes? [y/N] ' >&2
read -r answer || answer=n
if [ "$answer" = y ]; then
    airlock workspace commit "$id" >/dev/null
else
    airlock workspace discard "$id" >/dev/null
fi
