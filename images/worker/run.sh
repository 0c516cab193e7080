#!/usr/bin/env bash
# Starts the tool worker in a container: run.sh [IMAGE] [ARG…]
# Every variable of the worker that is set here is passed on (airlock worker sam --help lists them). Beside them:
#   TOOLS_MOUNT        folder with manifest.yaml and python/ (./tools if there is one), shown at SAM_TOOLS_DIR (/tools); with
#                      TOOL_SYNC_ENABLED tools are fetched into it, so that uid 1000 must be able to write there
#   AIRLOCK_CONFIG     configuration file, shown read-only; SAM_LLM_PROVIDER names a provider of it
#   ARTIFACT_MOUNT     folder that is shared with agents as ARTIFACT_SERVICE_TYPE=filesystem; uid 1000 must be able to write there
#   CONTAINER_NAME     airlock-worker
#   CONTAINER_NETWORK  the engine's own; host, none, or the name of one. With host HEALTH_PORT is open on all addresses of this machine
#   CONTAINER_CMD      podman or docker
#   CONTAINER_OPTIONS  further options for the engine, separated by blanks
#   CONTAINER_ROOT     1: as root with capabilities, where /proc cannot be uncovered (see docs/worker.md)
#   DETACH             1: in the background
# The broker on this machine is host.containers.internal.
set -euo pipefail
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=container-runtime.sh
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
[ $# -eq 0 ] || shift
name=${CONTAINER_NAME:-airlock-worker}
options=(--name "$name" --read-only --tmpfs "/tmp:rw,nosuid,nodev,mode=1777,exec")

fail() { # WORD…
    printf 'run.sh: %s\n' "$*" >&2
    exit 1
}

# The whole path of what is there. Sets whole.
resolve() { # PATH
    local folder
    folder=$(CDPATH='' cd -- "$(dirname -- "$1")" 2>/dev/null && pwd) || fail "there is no \`$1\`"
    whole=${folder%/}/$(basename -- "$1")
    [ -e "$whole" ] || fail "there is no \`$1\`"
}

# A folder or a file of this machine, at a place inside.
show() { # HOST INSIDE ro|rw
    resolve "$1"
    case $2 in
        /*) ;;
        *) fail "\`$2\` is a place in the container: write it from the root on" ;;
    esac
    case $whole$2 in
        *:*) fail "\`$1\` cannot be shown at \`$2\`: engines do not take a colon in either" ;;
    esac
    options+=(--volume "$whole:$2:$3")
}

is_on() { # VALUE
    case "${1,,}" in true | 1 | yes | on) return 0 ;; *) return 1 ;; esac
}

tools=${SAM_TOOLS_DIR:-/tools}
if is_on "${TOOL_SYNC_ENABLED:-}"; then
    if [ -n "${TOOLS_MOUNT:-}" ]; then
        show "$TOOLS_MOUNT" "$tools" rw
    elif [ "$tools" = /tools ] || [ "${CONTAINER_ROOT:-}" = 1 ]; then
        # What is fetched ends with the container.
        options+=(--volume "$tools")
    else
        fail "\`$tools\` would be root's, and the worker could fetch nothing into it: leave SAM_TOOLS_DIR unset, or set TOOLS_MOUNT to a folder that uid 1000 may write to"
    fi
elif [ -n "${TOOLS_MOUNT:-}" ]; then
    show "$TOOLS_MOUNT" "$tools" ro
elif [ -d tools ]; then
    show tools "$tools" ro
fi
if [ -n "${ARTIFACT_MOUNT:-}" ]; then
    show "$ARTIFACT_MOUNT" "${ARTIFACT_BASE_PATH:-/sam/artifacts}" rw
    export ARTIFACT_SERVICE_TYPE=${ARTIFACT_SERVICE_TYPE:-filesystem}
fi
# Files that a variable names are shown at the same place, and called by their whole path.
for variable in SOLACE_TRUST_STORE_PATH SOLACE_TLS_TRUST_STORE_DIR SOLACE_CLIENT_CERT_PATH SOLACE_CLIENT_KEY_PATH \
    GOOGLE_APPLICATION_CREDENTIALS AWS_WEB_IDENTITY_TOKEN_FILE SAM_SITE_PACKAGES AIRLOCK_CONFIG; do
    if [ -n "${!variable:-}" ]; then
        resolve "${!variable}"
        show "$whole" "$whole" ro
        export "$variable=$whole"
    fi
done
if [ -n "${AIRLOCK_CONFIG:-}" ]; then
    options+=(--env AIRLOCK_CONFIG)
elif [ -n "${SAM_LLM_PROVIDER:-}" ]; then
    echo "run.sh: SAM_LLM_PROVIDER without AIRLOCK_CONFIG: only the providers that need no configuration are there, and they have no key" >&2
fi
# As the worker does with what is no port.
port=${HEALTH_PORT:-8081}
if ! [[ $port =~ ^[0-9]{1,5}$ ]] || ((10#$port > 65535)); then
    echo "run.sh: HEALTH_PORT is no port: 8081 is used" >&2
    port=8081
fi
port=$((10#$port))
[ -z "${HEALTH_PORT:-}" ] || export HEALTH_PORT=$port
# By name only: values stay out of argument lists.
for variable in "${variables[@]}"; do
    if [ -n "${!variable:-}" ]; then
        export "${variable?}"
        options+=(--env "$variable")
    fi
done
case $port/${CONTAINER_NETWORK:-} in
    0/* | */none) ;;
    */host)
        echo "run.sh: with CONTAINER_NETWORK=host anybody who reaches this machine may ask port $port how the worker is; HEALTH_PORT=0 closes it" >&2
        ;;
    *) options+=(--publish "127.0.0.1:$port:$port") ;;
esac
# Separated by blanks, and nothing in them is looked up.
read -r -d '' -a further <<<"${CONTAINER_OPTIONS:-}" || true
options+=("${further[@]}")

# A place that cannot make sandboxes is named before anything starts; there is no weaker way.
if ! checked=$(CONTAINER_NETWORK=none container_run --rm --read-only --tmpfs "/tmp:rw,nosuid,nodev,mode=1777,exec" \
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
