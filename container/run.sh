#!/usr/bin/env bash
# Starts the tool worker in a container: run.sh [IMAGE] [ARG…]
# Every variable of the worker that is set here is passed on (airlock worker sam --help lists them). Beside them:
#   TOOLS_MOUNT        folder with manifest.yaml and python/ (./tools if there is one), shown at SAM_TOOLS_DIR
#   ARTIFACT_MOUNT     folder that is shared with agents as ARTIFACT_SERVICE_TYPE=filesystem; uid 1000 must be able to write there
#   CONTAINER_NAME     airlock-worker
#   CONTAINER_NETWORK  the engine's own; host, none, or the name of one
#   CONTAINER_CMD      podman or docker
#   CONTAINER_OPTIONS  further options for the engine, separated by blanks
#   CONTAINER_ROOT     1: as root with capabilities, which tools of the profile `permissive` need (see docs/worker.md)
#   DETACH             1: in the background
# The broker on this machine is host.containers.internal.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
. "$here/container-runtime.sh"

variables=(
    SAM_NAMESPACE NAMESPACE SAM_WORKER_ID SAM_TRANSPORT SOLACE_BROKER_URL SOLACE_HOST SOLACE_BROKER_VPN SOLACE_VPN
    SOLACE_BROKER_USERNAME SOLACE_USERNAME SOLACE_BROKER_PASSWORD SOLACE_PASSWORD SOLACE_TRUST_STORE_PATH
    SOLACE_TLS_TRUST_STORE_DIR SOLACE_CLIENT_CERT_PATH SOLACE_CLIENT_KEY_PATH SOLACE_RECONNECT_RETRIES
    SOLACE_RECONNECT_DELAY_MS SAM_POOL SAM_MQTT_VERSION SAM_AMQP_ADDRESSES SAM_QUEUE DEV_BROKER_HOST DEV_BROKER_PORT SAM_DEV_BROKER_HOST
    SAM_DEV_BROKER_PORT SOLACE_DEV_MODE CONNECT_RETRIES CONNECT_RETRY_DELAY_MS SAM_TOOLS_DIR MANIFEST_PATH
    TOOLS_PYTHON_DIR SAM_SITE_PACKAGES PIP_INDEX_URL PIP_TRUSTED_HOST STR_RECONCILE_INTERVAL SANDBOX_PYTHON_BIN SAM_STR_PYTHON DEFAULT_TIMEOUT_SECONDS
    SANDBOX_DEFAULT_PROFILE SANDBOX_MODE STR_SANDBOX_MODE SANDBOX_WORK_DIR STR_WORK_BASE_DIR SANDBOX_MAX_CONCURRENT
    SAM_MAX_WAITING SAM_DRAIN_SECONDS SAM_WARM SAM_LLM_PROVIDER SAM_LLM_MODEL SAM_LLM_BUDGET_USD SAM_LLM_BUDGET_DAY_USD ARTIFACT_SERVICE_TYPE ARTIFACT_BASE_PATH
    ARTIFACT_S3_BUCKET ARTIFACT_S3_REGION ARTIFACT_GCS_BUCKET ARTIFACT_SCOPE ARTIFACT_SCOPE_VALUE S3_ENDPOINT_URL
    AWS_ENDPOINT_URL AWS_REGION S3_REGION AWS_DEFAULT_REGION AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_ROLE_ARN AWS_WEB_IDENTITY_TOKEN_FILE
    GOOGLE_APPLICATION_CREDENTIALS TOOL_SYNC_ENABLED TOOL_SYNC_INTERVAL OBJECT_STORAGE_TYPE STR_S3_BUCKET_NAME
    STR_S3_BUCKET OBJECT_STORAGE_BUCKET_NAME S3_BUCKET_NAME GCS_BUCKET_NAME HEALTH_PORT LOG_FORMAT SANDBOX_BWRAP_BIN
    STR_SECCOMP_BIND_DENY SAM_SKILLS_DIR SAM_BUILTIN_SKILLS_DIR SAM_VOLUME_ROOT SAM_DATA_DIR SAM_DISABLE_EMBEDDED_STR
    _SAM_SANDBOX_LIGHT GCS_PROJECT AZURE_CONTAINER_NAME AZURE_STORAGE_CONNECTION_STRING AZURE_STORAGE_ACCOUNT_NAME
    AZURE_STORAGE_ACCOUNT_KEY
)

image=${1:-airlock-worker:latest}
[ $# -gt 0 ] && shift
name=${CONTAINER_NAME:-airlock-worker}
options=(--name "$name" --read-only --tmpfs /tmp:rw,nosuid,nodev,mode=1777,exec)

# A folder or a file of this machine, at a place inside.
show() { # HOST INSIDE ro|rw
    local path
    path=$(cd -- "$(dirname -- "$1")" && pwd)/$(basename -- "$1")
    if [ ! -e "$path" ]; then
        echo "run.sh: there is no \`$1\`" >&2
        exit 1
    fi
    options+=(--volume "$path:$2:$3")
}

is_on() { # VALUE
    case "${1,,}" in true | 1 | yes | on) return 0 ;; *) return 1 ;; esac
}

# Tools that are fetched end with the container.
tools=${SAM_TOOLS_DIR:-/tools}
if is_on "${TOOL_SYNC_ENABLED:-}"; then
    options+=(--volume "$tools")
elif [ -n "${TOOLS_MOUNT:-}" ]; then
    show "$TOOLS_MOUNT" "$tools" ro
elif [ -d tools ]; then
    show tools "$tools" ro
fi
# The image has one folder for this that is the worker's own; another must be mounted by CONTAINER_OPTIONS.
work=${SANDBOX_WORK_DIR:-${STR_WORK_BASE_DIR:-}}
if [ "$work" = /sandbox/work ]; then
    options+=(--volume /sandbox/work)
elif [ -n "$work" ] && [[ ${CONTAINER_OPTIONS:-} != *"$work"* ]]; then
    echo "run.sh: \`$work\` is no folder of the image; leave SANDBOX_WORK_DIR unset, or mount it by CONTAINER_OPTIONS" >&2
    exit 1
fi
if [ -n "${ARTIFACT_MOUNT:-}" ]; then
    show "$ARTIFACT_MOUNT" "${ARTIFACT_BASE_PATH:-/sam/artifacts}" rw
    export ARTIFACT_SERVICE_TYPE=${ARTIFACT_SERVICE_TYPE:-filesystem}
fi
# Files that a variable names are shown at the same place.
for variable in SOLACE_TRUST_STORE_PATH SOLACE_TLS_TRUST_STORE_DIR SOLACE_CLIENT_CERT_PATH SOLACE_CLIENT_KEY_PATH \
    GOOGLE_APPLICATION_CREDENTIALS AWS_WEB_IDENTITY_TOKEN_FILE SAM_SITE_PACKAGES; do
    [ -n "${!variable:-}" ] && show "${!variable}" "${!variable}" ro
done
# By name only: values stay out of argument lists.
for variable in "${variables[@]}"; do
    if [ -n "${!variable:-}" ]; then
        export "${variable?}"
        options+=(--env "$variable")
    fi
done
port=${HEALTH_PORT:-8081}
case ${CONTAINER_NETWORK:-} in
    host | none) ;;
    *) [ "$port" != 0 ] && options+=(--publish "127.0.0.1:$port:$port") ;;
esac
# shellcheck disable=SC2206
[ -n "${CONTAINER_OPTIONS:-}" ] && options+=($CONTAINER_OPTIONS)

# A place that cannot make sandboxes is named before anything starts; there is no weaker way.
if ! checked=$(CONTAINER_NETWORK=none container_run --rm --read-only --tmpfs /tmp:rw,nosuid,nodev,mode=1777,exec \
    --entrypoint /usr/local/bin/airlock "$image" doctor 2>&1); then
    printf '%s\n' "$checked" >&2
    echo "run.sh: the engine does not let this container make sandboxes; see above what is missing" >&2
    exit 1
fi
while IFS= read -r line; do
    case $line in weaker*) printf '%s\n' "$line" >&2 ;; esac
done <<<"$checked"

if is_on "${DETACH:-}"; then
    container_run --detach "${options[@]}" "$image" "$@"
else
    container_run --rm "${options[@]}" "$image" "$@"
fi
