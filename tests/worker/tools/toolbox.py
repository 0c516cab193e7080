"""Small tools for the tests of the worker, written as tool authors of the mesh write them."""

import asyncio
import os
import signal
import sys
import time
from typing import Any, List, Optional


# ---- Results ---------------------------------------------------------------------------------------------------------


def echo(text: str = "", **more):
    return {"text": text, **more}


def nothing():
    return None


def number():
    return 42


def words():
    return "forty-two"


def a_list():
    return [1, 2, 3]


def own_error():
    return {"error": "this is a result, for all that"}


def unicode_text():
    return {"text": "Grüße, 世界 \U0001f980\u2028"}


def not_json():
    return {"value": object()}


def not_a_number():
    return {"value": float("nan")}


async def later(text: str):
    await asyncio.sleep(0)
    return {"text": text}


def large(size: int):
    return {"text": "x" * size}


def configured(key: str, tool_config: dict):
    return {"value": tool_config.get(key)}


def typed(count: int, ratio: float, yes: bool):
    return {"count": count, "ratio": ratio, "yes": yes}


# ---- Contexts --------------------------------------------------------------------------------------------------------


def legacy(ctx, name):
    return {
        "name": name,
        "user": ctx.user_id,
        "session": ctx.session_id,
        "listed": sorted(ctx.list_artifacts()),
    }


def legacy_files(ctx, source):
    text = ctx.load_artifact_text("source")
    ctx.save_artifact_text("upper.txt", text.upper())
    ctx.save_artifact("raw.bin", bytes(range(256)), "application/x-anything")
    return {"text": text, "saved": sorted(ctx.list_output_artifacts())}


def any_context(ctx: Any, name: str):
    return {"name": name, "user": ctx.user_id}


def facade(ctx: "ToolContextFacade", key: str):
    return {
        "user": ctx.user_id,
        "session": ctx.session_id,
        "app": ctx.app_name,
        "config": ctx.get_config(key, "none"),
        "state": ctx.state,
    }


async def facade_files(ctx: "ToolContextFacade", filename: str):
    text = await ctx.load_artifact(filename, as_text=True)
    return {
        "text": text,
        "listed": sorted(str(one) for one in await ctx.list_artifacts()),
        "exists": await ctx.artifact_exists(filename),
        "missing": await ctx.artifact_exists("nowhere.txt"),
    }


# ---- Statuses --------------------------------------------------------------------------------------------------------


def statuses(ctx: "ToolContextFacade", count: int):
    sent = [ctx.send_status(f"status {index}") for index in range(count)]
    return {"sent": sum(1 for one in sent if one)}


def said_then_waits(ctx: "ToolContextFacade", seconds: float):
    """Tells that it runs, so that whoever waits for that need not guess."""
    ctx.send_status("runs")
    time.sleep(seconds)
    return {"slept": seconds}


def marked(ctx: "ToolContextFacade", mark: str, seconds: float):
    """Goes by a name that is seen from outside the box, in the list of processes."""
    with open("/proc/self/comm", "w") as name:
        name.write(mark)
    ctx.send_status("runs")
    time.sleep(seconds)
    return {"mark": mark}


def sleeps(seconds: float):
    time.sleep(seconds)
    return {"slept": seconds}


# ---- Failures --------------------------------------------------------------------------------------------------------


def raises(text: str):
    def deep():
        raise ValueError(text)

    deep()


def leaves(status: int):
    print("last words on stderr", file=sys.stderr, flush=True)
    os._exit(status)


def exits(status: int):
    sys.exit(status)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def wants_two(first, second):
    return {"first": first, "second": second}


def told_to_end(ctx: "ToolContextFacade"):
    """Outlives its time; says so when it is told to end, and ends."""

    def end(_number, _frame):
        print("heard SIGTERM", file=sys.stderr, flush=True)
        os._exit(3)

    signal.signal(signal.SIGTERM, end)
    ctx.send_status("runs")
    while True:
        time.sleep(0.05)


def deaf(ctx: "ToolContextFacade", mark: str):
    """Outlives its time and every request to end, with a child that does the same."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.fork()
    with open("/proc/self/comm", "w") as name:
        name.write(mark)
    ctx.send_status("runs")
    while True:
        time.sleep(0.05)


def talks(text: str):
    print(f"on stdout: {text}", flush=True)
    print(f"on stderr: {text}", file=sys.stderr, flush=True)
    return {}


# ---- Files -----------------------------------------------------------------------------------------------------------


def reads(source: "Artifact"):
    return {"text": source.content.decode(), "filename": source.filename, "mime_type": source.mime_type}


def reads_all(sources: "List[Artifact]"):
    return {"texts": [one.content.decode() for one in sources]}


def reads_maybe(source: "Optional[Artifact]" = None):
    return {"is_there": source is not None}


def reads_two(left: "Artifact", right: "Artifact"):
    return {"left": left.content.decode(), "right": right.content.decode()}


def tells_and_reads(ctx: "ToolContextFacade", source: "Artifact"):
    ctx.send_status("runs")
    return {"text": source.content.decode()}


def output(name: str) -> str:
    return os.path.join(os.getcwd(), "output", name)


def writes(files: dict):
    for name, text in files.items():
        with open(output(name), "w") as file:
            file.write(text)
    return {"names": sorted(files)}


def writes_bytes(name: str, size: int):
    with open(output(name), "wb") as file:
        file.write(b"\0" * size)
    return {}


def writes_strange(secret: str):
    """Everything that is no regular file of the tool's own, and one that is."""
    os.symlink(secret, output("link.txt"))
    os.symlink("/proc/self/environ", output("magic.txt"))
    os.symlink("good.txt", output("inner.txt"))
    os.mkfifo(output("pipe.txt"))
    os.mkdir(output("folder.txt"))
    told = {}
    try:
        os.mknod(output("device.txt"), 0o20666, os.makedev(1, 3))
    except OSError as error:
        told["device"] = error.errno
    try:
        os.link("/etc/passwd", output("hard.txt"))
    except OSError as error:
        told["hard"] = error.errno
    with open(output("good.txt"), "w") as file:
        file.write("good")
    return told


def result_elsewhere(secret: str, kind: str):
    """Puts something else in the place of its result, and ends before a runner could write one."""
    at = os.path.join(os.getcwd(), "result.json")
    for name in [at, output("x")]:
        if os.path.lexists(name):
            os.unlink(name)
    if kind == "symlink":
        os.symlink(secret, at)
    elif kind == "pipe":
        os.mkfifo(at)
    elif kind == "folder":
        os.mkdir(at)
    elif kind == "huge":
        with open(at, "wb") as file:
            file.write(b'{"result": {"text": "')
            for _ in range(40):
                file.write(b"x" * (1 << 20))
            file.write(b'"}}')
    elif kind == "not_json":
        with open(at, "w") as file:
            file.write("this is no JSON")
    elif kind == "good":
        with open(at, "w") as file:
            file.write('{"result": {"text": "by hand"}, "error": ""}')
    sys.stdout.flush()
    os._exit(0)


# ---- What a tool sees of its box -------------------------------------------------------------------------------------


def environment():
    return {"environment": dict(os.environ)}


def who():
    status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
    return {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "capabilities": status["CapEff"],
        "no_new_privileges": status["NoNewPrivs"],
        "filter": status["Seccomp"],
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    }


def limits():
    import resource

    names = ["CPU", "FSIZE", "NOFILE", "STACK", "MEMLOCK", "MSGQUEUE", "CORE"]
    told = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}", 12 if name == "MSGQUEUE" else 0)) for name in names}
    return {"limits": told, "nice": os.nice(0)}


def tries_to_write(paths: list):
    told = {}
    for path in paths:
        try:
            with open(path, "w") as file:
                file.write("x")
            told[path] = "written"
        except OSError as error:
            told[path] = type(error).__name__
    return {"told": told}


def tries_to_read(paths: list):
    told = {}
    for path in paths:
        try:
            with open(path) as file:
                told[path] = file.read(200)
        except OSError as error:
            told[path] = type(error).__name__
    return {"told": told}


def connects(host: str, port: int):
    import socket

    try:
        socket.create_connection((host, port), timeout=5).close()
        return {"told": "connected"}
    except OSError as error:
        return {"told": str(error)}


def takes_memory(mebibytes: int):
    held = bytearray(mebibytes << 20)
    for at in range(0, len(held), 4096):
        held[at] = 1
    return {"held": len(held) >> 20}


def forks(count: int):
    """How many children it could have at once."""
    children = []
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                time.sleep(30)
                os._exit(0)
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return {"children": len(children)}


def uses_wheel():
    import airlock_test_wheel

    return {"text": airlock_test_wheel.TEXT}
