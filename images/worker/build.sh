#!/usr/bin/env bash
# Builds the image of the tool worker: build.sh [TAG]
#   AIRLOCK_BINARY           the program that is put in (target/dist/airlock of this repository)
#   BASE                     the image below it (python:3.11-slim-bookworm)
#   CONTAINER_CMD            podman or docker
#   CONTAINER_BUILD_OPTIONS  further options for the engine, separated by blanks
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=container-runtime.sh
. "$here/container-runtime.sh"

tag=${1:-airlock-worker:latest}
binary=${AIRLOCK_BINARY:-$here/../../target/dist/airlock}
if [ ! -x "$binary" ]; then
    echo "build.sh: there is no program \`$binary\`; make it with \`cargo build --profile dist -p airlock\`, or name one by AIRLOCK_BINARY" >&2
    exit 1
fi

# Only what belongs into the image is sent to the engine.
context=$(mktemp -d)
trap 'rm -rf -- "$context"' EXIT
cp -- "$here/Containerfile" "$context/Containerfile"
cp -- "$binary" "$context/airlock"
chmod 0755 "$context/airlock"

options=()
if [ -n "${BASE:-}" ]; then
    options+=(--build-arg "BASE=$BASE")
fi
# Separated by blanks, and nothing in them is looked up.
read -r -d '' -a further <<<"${CONTAINER_BUILD_OPTIONS:-}" || true
options+=("${further[@]}")
container_build "$context" "$tag" "${options[@]}"
echo "built $tag; start it with run.sh $tag" >&2
