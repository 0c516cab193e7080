"""Function tools of every shape, as people write them."""

import enum
import sys
from dataclasses import dataclass, field
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, Dict, List, Literal, Optional, Union

print("printed while it was imported")


class Artifact:
    """A class of the tool's own, which wants what the mesh's own does."""

    def __init__(self, content, filename, version, mime_type, metadata):
        self.content, self.filename, self.version = content, filename, version
        self.mime_type, self.metadata = mime_type, metadata


class ToolContextFacade:
    """As the mesh calls it; nobody here can make one."""

    def __init__(self, tool_context, tool_config):
        raise AssertionError("only the mesh makes these")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Disposed:
    name: str
    content: Any
    mime_type: str = "text/plain"
    disposition: Any = "artifact"
    description: Optional[str] = None


@dataclass
class Outcome:
    """A result with data objects, without a way of its own to become a dictionary."""

    status: str = "success"
    message: str = ""
    data_objects: list = field(default_factory=list)


def echo(text, n: int = 1):
    return {"echo": text * n}


async def echo_later(text: str):
    import asyncio

    await asyncio.sleep(0)
    return {"echo": text}


def returns(what):
    return {
        "none": None, "number": 7, "text": "hi", "list": [1, 2], "bytes": b"plain", "raw": b"\xff\x00",
        "float": float("nan"), "false": False, "error": {"error": "of the tool's own"}, "enum": Color.RED,
        "half": "\ud800!",
    }[what]


def strange(what):
    circle: Dict[str, Any] = {}
    circle["self"] = circle
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    return {"value": {
        "nan": float("nan"), "infinite": [float("inf"), float("-inf")], "huge": 2**200, "longest": 10**5000,
        "big": 2**63, "small": -(2**63), "bytes": b"ab", "raw": bytearray(b"\xff"), "set": {3, 1, 2},
        "when": datetime(2026, 11, 16, 12, 0, tzinfo=timezone.utc), "decimal": Decimal("1.50"), "enum": Color.BLUE,
        "keys": {1: "a", None: "b", True: "c", (1, 2): "d", 1.5: "e"}, "circle": circle, "deep": deep,
        "object": Disposed("a", "b"), "half": "a\ud800b", "half key": {"\udc00": 1}, "tuple": (1, (2,)),
        "class": Color, "unprintable": Unprintable(),
    }[what]}


class Unprintable:
    def __str__(self):
        raise RuntimeError("no words")


def fails(how):
    if how == "value":
        raise ValueError("of the tool's own")
    if how == "chain":
        try:
            {}["absent"]
        except KeyError as error:
            raise RuntimeError("because of that") from error
    if how == "type":
        return 1 + "a"
    if how == "attribute":
        return None.absent
    if how == "import":
        import a_module_that_is_not_there  # noqa: F401
    if how == "exit":
        sys.exit(3)
    if how == "base":
        raise KeyboardInterrupt
    if how == "recursion":
        return fails(how)
    if how == "unprintable":
        raise Silent()
    if how == "long":
        raise ValueError("x" * 1_000_000)
    if how == "nothing":
        raise ValueError


class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def legacy(ctx, name):
    ctx.send_status("at work")
    ctx.save_artifact("out.bin", b"\x00\x01", "application/x-own")
    ctx.save_artifact_text("out.txt", "words")
    return {
        "bytes": ctx.load_artifact(name).decode(), "text": ctx.load_artifact_text(name),
        "absent": ctx.load_artifact("absent"), "absent text": ctx.load_artifact_text("absent"),
        "list": sorted(ctx.list_artifacts()), "outputs": ctx.list_output_artifacts(),
        "user": [ctx.user_id, ctx.session_id, ctx.app_name], "config": ctx.get_config("depth", 0),
    }


def any_context(ctx: Any, name: str):
    return {"bytes": ctx.load_artifact(name).decode(), "absent": ctx.load_artifact("absent") is None}


async def any_context_later(ctx: Any, name: str):
    try:
        await ctx.load_artifact("absent.txt")
        absent = "there"
    except FileNotFoundError:
        absent = "not found"
    return {
        "awaited": (await ctx.load_artifact("in.txt")).decode(), "used": ctx.load_artifact(name).decode(),
        "text": await ctx.load_artifact("in.txt", as_text=True), "names": await ctx.list_artifacts(),
        "keys": sorted(ctx.list_artifacts()), "absent": absent, "is nothing": not ctx.load_artifact("absent.txt"),
        "exists": await ctx.artifact_exists("in.txt"),
    }


def wants_text(text: str):
    return {"text": text}


def bare_first(settings=None, b=2):
    return {"settings": settings, "b": b}


async def with_facade(name: str, ctx: Optional[ToolContextFacade] = None):
    return {
        "text": await ctx.load_artifact(name, as_text=True), "exact": await ctx.load_artifact(name, version=1),
        "named": await ctx.load_artifact(name + ":1", as_text=True),
        "about": await ctx.load_artifact_metadata(name), "names": await ctx.list_artifacts(),
        "exists": [await ctx.artifact_exists(name), await ctx.artifact_exists("no")], "raw": ctx.raw_tool_context,
        "signal": ctx.send_signal({}), "state": ctx.state, "profile": ctx.user_profile, "task": ctx.task_id,
        "token": [ctx.auth_token, ctx.get_auth_token()],
        "volumes": [[one.volume_id, one.mount_path, one.read_only] for one in ctx.volume_mounts],
        "path": [ctx.get_volume_mount_path("/cache"), ctx.get_volume_mount_path("/no")],
        "config": [
            ctx.get_config("depth"), ctx.get_config("no", 1), ctx.get_config_string("name"), ctx.get_config_string("depth", "-"),
            ctx.get_config_int("depth"), ctx.get_config_int("digits"), ctx.get_config_int("name", 4),
            ctx.get_config_float("depth"), ctx.get_config_bool("flag"), ctx.get_config_bool("name"),
        ],
    }


def with_string_annotation(ctx: "ToolContextFacade", picture: "Artifact"):
    return {"name": picture.filename, "kind": type(picture).__name__, "user": ctx.user_id}


def one_artifact(picture: Artifact, width: int):
    return {
        "content": picture.content.decode(), "name": picture.filename, "version": picture.version,
        "mime": picture.mime_type, "own": type(picture).__module__ == __name__, "width": width,
    }


def many_artifacts(pictures: List[Artifact], more: Optional[List[Artifact]] = None):
    return {"names": [one.filename for one in pictures], "more": more}


def maybe_artifact(picture: Optional[Artifact]):
    return {"there": picture is not None}


def configured(tool_config, prompt: str):
    return {"prompt": prompt, "config": tool_config}


def coerced(a: int, b: float, c: bool, d: Optional[int] = None, e: str = "", f: Union[int, str] = 0):
    return {"values": [a, b, c, d, e, f]}


def by_place(a, /, b, *, c=3):
    return {"values": [a, b, c]}


def anything(**kwargs):
    return {"given": kwargs}


def with_objects():
    return Outcome(message="made", data_objects=[
        Disposed("a.csv", "1,2", "text/csv", "artifact", "two numbers"), Disposed("b.bin", b"\xff", disposition=Auto.AUTO),
        Disposed("c.txt", "shown", disposition="inline"),
    ])


def with_bad_name(name: str):
    return Outcome(data_objects=[Disposed(name, "x")])


class Auto(enum.Enum):
    AUTO = "auto"


def says_status(ctx: ToolContextFacade, long: int = 0):
    return {"sent": [ctx.send_status("one"), ctx.send_status("two" + "é" * long)]}


def asks_model(ctx: ToolContextFacade):
    return {"text": ctx.call_llm("be brief", "what is 6 x 7?")}


def leaves_threads():
    import threading
    import time

    threading.Thread(target=time.sleep, args=(600,)).start()
    sys.stdout.write("not flushed yet")
    return {"done": True}


def forks():
    import os

    return {"parent": os.fork() != 0}


def sees():
    import os

    return {"path": sys.path, "argv": len(sys.argv), "airlock": [n for n in os.environ if n.startswith("AIRLOCK_")]}


class Callable:
    def __call__(self, text: str):
        return {"called": text}


instance = Callable()
not_callable = 5


def documented(city: str, days: int = 3, unit: Literal["c", "f"] = "c", tags: Optional[List[str]] = None, extra: Dict[str, int] = None):
    """Forecast for a city.

    Use for weather only.

    Args:
        city: Where, and
            in which country.
        days (int): How many days.

    Returns:
        A forecast.
    """


def described(ctx: Any, shape: Disposed, color: Color, when: datetime, either: Union[int, str], doc: Artifact, docs: List[Artifact] = None):
    """:param color: Of what."""
