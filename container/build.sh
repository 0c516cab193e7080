#!/usr/bin/env bash
# Builds the image of the tool worker: build.sh [TAG]
#   AIRLOCK_BINARY           the program that is put in (target/release/airlock of this repository)
#   BASE                     the image below it (python:3.11-slim-bookworm)
#   CONTAINER_CMD            podman or docker
#   CONTAINER_BUILD_OPTIONS  further options for the engine, separated by blanks
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
. "$here/container-runtime.sh"

tag=${1:-airlock-worker:latest}
binary=${AIRLOCK_BINARY:-$here/../target/release/airlock}
if [ ! -x "$binary" ]; then
    echo "build.sh: there is no program \`$binary\`; make it with \`cargo build --release -p airlock\`, or name one by AIRLOCK_BINARY" >&2
    exit 1
fi

# Only what belongs into the image is sent to the engine.
context=$(mktemp -d)
trap 'rm -rf -- "$context"' EXIT
cp -- "$here/Containerfile" "$context/Containerfile"
cp -- "$binary" "$context/airlock"
chmod 0755 "$context/airlock"

options=()
[ -n "${BASE:-}" ] && options+=(--build-arg "BASE=$BASE")
# Separated by blanks on purpose.
# shellcheck disable=SC2206
[ -n "${CONTAINER_BUILD_OPTIONS:-}" ] && options+=($CONTAINER_BUILD_OPTIONS)
container_build "$context" "$tag" "${options[@]}"
echo "built $tag; start it with run.sh $tag" >&2
