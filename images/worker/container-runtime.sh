# To be sourced: one way to speak to Podman and to Docker.
#   $CONTAINER_CMD                          the engine: podman if it is there, else docker, unless it is set already
#   container_build CONTEXT TAG [OPTION…]   builds an image from CONTEXT/Containerfile
#   container_run [OPTION…] IMAGE [ARG…]    runs with what sandboxes inside need, and with host.containers.internal
#   container_logs NAME [OPTION…]
#   container_stop NAME [SECONDS]
# What is asked of the engine is printed first; values of variables are never in it.

if [ -z "${CONTAINER_CMD:-}" ]; then
    if command -v podman >/dev/null 2>&1; then
        CONTAINER_CMD=podman
    elif command -v docker >/dev/null 2>&1; then
        CONTAINER_CMD=docker
    else
        echo "container-runtime: neither podman nor docker is on the PATH; install one, or set CONTAINER_CMD" >&2
        # shellcheck disable=SC2317
        return 1 2>/dev/null || exit 1
    fi
fi
export CONTAINER_CMD

# `docker` may be Podman under another name.
case "$("$CONTAINER_CMD" --version 2>/dev/null)" in
    *[Pp]odman*) CONTAINER_KIND=podman ;;
    *) CONTAINER_KIND=docker ;;
esac
export CONTAINER_KIND

# The folder of this file, for what lies beside it.
CONTAINER_FOLDER=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

_container_say() {
    printf '+ %s' "$CONTAINER_CMD" >&2
    printf ' %q' "$@" >&2
    printf '\n' >&2
}

container_build() { # CONTEXT TAG [OPTION…]
    local context=$1 tag=$2
    shift 2
    local options=(build --tag "$tag" --file "$context/Containerfile")
    # The format of OCI has no health check.
    [ "$CONTAINER_KIND" = podman ] && options+=(--format docker)
    _container_say "${options[@]}" "$@" "$context"
    "$CONTAINER_CMD" "${options[@]}" "$@" "$context"
}

# What Airlock needs in a container to make sandboxes, found by trying and checked by `airlock doctor`. Sets CONTAINER_SECURITY.
# - An ordinary user needs no capability, but namespaces (the engine's own filter of system calls forbids them) and a /proc
#   without covers (below them the kernel lets nobody make a new one).
# - With CONTAINER_ROOT=1 it is root with eight capabilities, and /proc may stay covered.
container_security() {
    CONTAINER_SECURITY=(--cap-drop ALL --security-opt no-new-privileges)
    CONTAINER_SECURITY+=(--security-opt "seccomp=$CONTAINER_FOLDER/seccomp.json")
    if [ "${CONTAINER_ROOT:-}" = 1 ]; then
        local capability
        for capability in CHOWN DAC_OVERRIDE NET_ADMIN NET_BIND_SERVICE SETGID SETUID SYS_ADMIN SYS_CHROOT; do
            CONTAINER_SECURITY+=(--cap-add "$capability")
        done
        # The other folder is the ordinary user's.
        CONTAINER_SECURITY+=(--user 0:0 --workdir / --volume /var/lib/airlock-root)
        CONTAINER_SECURITY+=(--env HOME=/var/lib/airlock-root --env AIRLOCK_STATE=/var/lib/airlock-root)
    else
        CONTAINER_SECURITY+=(--volume /var/lib/airlock)
        case $CONTAINER_KIND in
            podman) CONTAINER_SECURITY+=(--security-opt unmask=ALL) ;;
            *) CONTAINER_SECURITY+=(--security-opt systempaths=unconfined) ;;
        esac
    fi
    # Both forbid the mounts of a sandbox where they are in force.
    if [ -e /sys/fs/selinux/enforce ]; then
        CONTAINER_SECURITY+=(--security-opt label=disable)
    fi
    if [ "$(cat /sys/module/apparmor/parameters/enabled 2>/dev/null)" = Y ]; then
        CONTAINER_SECURITY+=(--security-opt apparmor=unconfined)
    fi
}

# host.containers.internal is the machine outside, on both engines. Sets CONTAINER_NAMES; $CONTAINER_NETWORK is the network.
container_names() {
    CONTAINER_NAMES=()
    case ${CONTAINER_NETWORK:-} in
        none) CONTAINER_NAMES+=(--network none) ;;
        host) CONTAINER_NAMES+=(--network host --add-host host.containers.internal:127.0.0.1) ;;
        *)
            [ -n "${CONTAINER_NETWORK:-}" ] && CONTAINER_NAMES+=(--network "$CONTAINER_NETWORK")
            # Podman has that name by itself.
            [ "$CONTAINER_KIND" = docker ] && CONTAINER_NAMES+=(--add-host host.containers.internal:host-gateway)
            ;;
    esac
    return 0
}

container_run() { # [OPTION…] IMAGE [ARG…]
    container_security
    container_names
    _container_say run "${CONTAINER_SECURITY[@]}" "${CONTAINER_NAMES[@]}" "$@"
    "$CONTAINER_CMD" run "${CONTAINER_SECURITY[@]}" "${CONTAINER_NAMES[@]}" "$@"
}

container_logs() { # NAME [OPTION…]
    local name=$1
    shift
    "$CONTAINER_CMD" logs "$@" "$name"
}

# Longer than the worker takes to end what it has begun (SAM_DRAIN_SECONDS; 25 where that is no number, as the worker has it).
container_stop() { # NAME [SECONDS]
    local seconds=${2:-}
    if [ -z "$seconds" ]; then
        seconds=${SAM_DRAIN_SECONDS:-25}
        # Digits only: in a sum the shell would carry out what it finds.
        [[ $seconds =~ ^[0-9]{1,5}$ ]] || seconds=25
        seconds=$((10#$seconds + 10))
    elif ! [[ $seconds =~ ^[0-9]{1,6}$ ]]; then
        echo "container_stop: the seconds are no number" >&2
        return 2
    fi
    "$CONTAINER_CMD" stop -t "$seconds" "$1"
}
