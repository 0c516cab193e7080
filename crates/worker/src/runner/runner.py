"""Runs one tool, inside the sandbox. One file, standard library only, Python 3.9 and later.

    runner.py ARGS_FILE                          run what the file says, write its result file
    runner.py --park MODULE ATTRIBUTE            import first, say `ready`, run when a line names an ARGS_FILE
    runner.py --describe MODULE ATTRIBUTE        print what the function takes, as JSON
    runner.py --schema-class MODULE CLASS FILE   construct, init, print what the class takes; FILE has its configuration

A result is `{"result": {...}}` or `{"error": "..."}`; `artifacts` describes files in the output folder.

Most calls end sooner than `import inspect` would take. So modules that are not always needed are imported where they
are used, and JSON is handled by the C half of the `json` module alone, because the other half imports `re`.
"""

import os
import sys

MAX_DEPTH = 100  # levels of a result; whoever reads it on the host follows 128
MAX_ERROR_LENGTH = 24 << 10
MAX_LINE_BYTES = 4096  # what a pipe takes whole or not at all
MAX_ANSWER_BYTES = 8 << 20
CONTEXT_NAMES = ("ToolContextFacade", "SandboxToolContextFacade", "ToolContext")
TO_ARTIFACTS = ("artifact", "auto", "artifact_with_preview")
VARIABLES = ("HOME", "LANG", "LC_CTYPE", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "TMPDIR", "_SAM_SANDBOX_LIGHT")
OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class Failed(Exception):
    """Why there is no result, as the caller is told."""


# --- JSON -------------------------------------------------------------------------------------------------------------


class _Reading:
    strict = True
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_int = int

    @staticmethod
    def parse_constant(name):
        raise ValueError(name + " is not JSON")


def from_json(text):
    text = text.strip(" \t\r\n")
    try:
        from _json import make_scanner

        value, end = make_scanner(_Reading)(text, 0)
        if end == len(text):
            return value
    except Exception:
        pass
    # The pure Python half of the module has the better error messages, and does the work where there is no C half.
    import json

    return json.loads(text, parse_constant=_Reading.parse_constant)


def to_json(value):
    """Size of a value that [`plain`] has converted, in bytes."""
    try:
        from _json import encode_basestring, make_encoder

        text = "".join(make_encoder(None, str, encode_basestring, None, ":", ",", False, False, False)(value, 0))
    except (ImportError, TypeError):
        import json

        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # A lone surrogate is not valid text.
    return text.encode("utf-8", "replace")


def plain(value, depth=0):
    """Converts a value to JSON types. What JSON cannot express becomes text: NaN, numbers beyond 64 bits, bytes."""
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return value
    if depth > MAX_DEPTH:
        raise ValueError("the result is nested more than %d levels deep, or contains itself" % MAX_DEPTH)
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 64 else _digits(value)
    if kind is float:
        return _number(value)
    if kind is dict:
        return {_key(key): plain(item, depth + 1) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [plain(item, depth + 1) for item in value]
    return _other(value, depth)


def _number(value):
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _digits(value):
    try:
        return str(value)
    except ValueError:  # longer than Python writes in decimals
        return hex(value)


def _key(key):
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int):
        return _digits(int(key))
    return shown(key)


def _other(value, depth):
    deeper = depth + 1
    if "Enum" in type(type(value)).__name__:
        return plain(value.value, deeper)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return plain(int(value), deeper)
    if isinstance(value, float):
        return _number(float(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return text_of(bytes(value))[0]
    if isinstance(value, dict):
        return {_key(key): plain(item, deeper) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, deeper) for item in value]
    if isinstance(value, (set, frozenset)):
        return _sorted([plain(item, deeper) for item in value])
    dumped = dump(value)
    if dumped is not value:
        return plain(dumped, deeper)
    for way in ("isoformat", "tolist"):
        if callable(getattr(value, way, None)) and not isinstance(value, type):
            return plain(getattr(value, way)(), deeper)
    return shown(value)


def _sorted(items):
    try:
        return sorted(items)
    except TypeError:
        return items


def dump(value):
    """Converts an object with its own method for dictionaries; returns the object itself if it has none."""
    if isinstance(value, type):
        return value
    for way in ("to_serializable", "model_dump", "dict"):
        if callable(getattr(type(value), way, None)):
            return getattr(value, way)()
    fields = getattr(value, "__dataclass_fields__", None)
    return value if fields is None else {name: getattr(value, name, None) for name in fields}


def text_of(content):
    """Bytes as text, and whether base64 was necessary."""
    try:
        return content.decode(), False
    except UnicodeDecodeError:
        from binascii import b2a_base64

        return b2a_base64(content, newline=False).decode(), True


def shown(value):
    try:
        return str(value)
    except Exception:
        return "<%s>" % type(value).__name__


# --- what a parameter is ----------------------------------------------------------------------------------------------


class Parameter:
    """One parameter: its kind (as in `inspect`: 0 positional only, 1, 2 `*`, 3 keyword only, 4 `**`), default and annotation."""

    __slots__ = ("name", "kind", "has_default", "default", "annotation", "words")

    def __init__(self, name, kind, default, annotation):
        self.name, self.kind, self.annotation = name, kind, annotation
        self.has_default = default is not Parameter
        self.default = default
        self.words = words(annotation)

    @property
    def is_context(self):
        return any(word in CONTEXT_NAMES or "ToolContextFacade" in word for word in self.words)

    @property
    def is_artifact(self):
        return "Artifact" in self.words and not {"Dict", "dict", "Mapping"} & self.words

    @property
    def is_list(self):
        return bool({"List", "list", "Sequence", "Iterable", "Tuple", "tuple"} & self.words)

    @property
    def is_optional(self):
        return bool({"Optional", "None", "NoneType"} & self.words) or self.has_default

    @property
    def may_be_context(self):
        """Whether there is no annotation, or one for any kind of context."""
        if any("Context" in word for word in self.words):
            return True
        return self.words <= {"Any", "object", "Optional", "None"}


def words(annotation):
    """The names in an annotation, without their modules: `Optional[tools.Artifact]` has Optional and Artifact."""
    if annotation is Parameter or annotation is None:
        return frozenset()
    if not isinstance(annotation, str):
        is_class = isinstance(annotation, type) and not hasattr(annotation, "__origin__")
        annotation = annotation.__name__ if is_class else str(annotation)
    found, word = set(), ""
    for letter in annotation + " ":
        if letter.isalnum() or letter == "_":
            word += letter
        else:
            if word and letter != ".":
                found.add(word)
            word = ""
    found.discard("ForwardRef")
    return frozenset(found)


def parameters(function):
    """The parameters of a function; none if they are unknown."""
    code = getattr(function, "__code__", None)
    if type(function).__name__ != "function" or hasattr(function, "__wrapped__") or hasattr(function, "__signature__"):
        return _inspected(function)
    notes = annotations(function)
    plain_count, only_place = code.co_argcount, code.co_posonlyargcount
    names = code.co_varnames
    defaults = function.__defaults__ or ()
    found = []
    for at in range(plain_count):
        from_end = at - plain_count
        default = defaults[from_end] if -from_end <= len(defaults) else Parameter
        found.append(Parameter(names[at], 0 if at < only_place else 1, default, notes.get(names[at], Parameter)))
    at = plain_count + code.co_kwonlyargcount
    if code.co_flags & 0x04:
        found.append(Parameter(names[at], 2, Parameter, Parameter))
        at += 1
    named = function.__kwdefaults__ or {}
    for name in names[plain_count : plain_count + code.co_kwonlyargcount]:
        found.append(Parameter(name, 3, named.get(name, Parameter), notes.get(name, Parameter)))
    if code.co_flags & 0x08:
        found.append(Parameter(names[at], 4, Parameter, Parameter))
    return found


def annotations(function):
    try:
        return function.__annotations__ or {}
    except Exception:  # evaluated late, and a name is only known to type checkers
        try:
            from annotationlib import Format, get_annotations

            return get_annotations(function, format=Format.STRING)
        except Exception:
            return {}


def _inspected(function):
    import inspect

    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError, NameError):
        return None
    empty = inspect.Parameter.empty

    def unless_empty(value):
        return Parameter if value is empty else value

    return [
        Parameter(one.name, int(one.kind), unless_empty(one.default), unless_empty(one.annotation))
        for one in signature.parameters.values()
    ]


def coerce(value, kinds):
    """Converts numbers that models send as text. Any other text stays as it is: the tool reports it best."""
    if not isinstance(value, str):
        return value
    kinds = kinds - {"Optional", "Union", "None", "NoneType"}
    try:
        if kinds in ({"int"}, {"integer"}):
            return int(value)
        if kinds in ({"float"}, {"number"}):
            return float(value)
    except ValueError:
        return value
    if kinds in ({"bool"}, {"boolean"}):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.strip().lower(), value)
    return value


# --- files in and out -------------------------------------------------------------------------------------------------


class Artifact:
    """An input file, for tools without a class of their own for files."""

    def __init__(self, content, filename, version=0, mime_type="application/octet-stream", metadata=None):
        self.content, self.filename, self.version = content, filename, version
        self.mime_type, self.metadata = mime_type, metadata or {}

    def as_text(self, encoding="utf-8"):
        return self.content.decode(encoding) if isinstance(self.content, bytes) else self.content

    def as_bytes(self, encoding="utf-8"):
        return self.content.encode(encoding) if isinstance(self.content, str) else self.content

    def __repr__(self):
        return "Artifact(%r, version=%r)" % (self.filename, self.version)


class Staged:
    """The input files, by parameter and by name."""

    def __init__(self, order):
        self.paths = dict(order.get("artifact_paths") or {})
        self.entries = {}
        for key, entry in (order.get("artifact_metadata") or {}).items():
            if isinstance(entry, dict):
                path = entry.get("local_path") or self.paths.get(key)
                self.entries[key] = dict(entry, local_path=path, filename=entry.get("filename") or _name_of(path))
        for key, path in self.paths.items():
            self.entries.setdefault(key, {"filename": _name_of(path), "local_path": path})

    def names(self):
        return list(dict.fromkeys(entry["filename"] for entry in self.entries.values()))

    def find(self, name, version="latest", keys_first=False):
        """A file by name, in the requested version if that exists, else the newest; or a file by parameter."""
        by_key = self.entries.get(name)
        if keys_first and by_key:
            return by_key
        same = [entry for entry in self.entries.values() if entry["filename"] == name]
        base, colon, number = name.rpartition(":") if isinstance(name, str) else ("", "", "")
        if not same and colon and number.isdigit():
            return self.find(base, int(number))
        exact = [entry for entry in same if entry.get("version") == version]
        same.sort(key=lambda entry: entry.get("version") or 0)
        return (exact or same or [by_key])[-1]

    def of_parameter(self, key, build):
        entry = self.entries.get(key)
        if entry is None:
            return None
        return build(
            content=read(entry["local_path"]),
            filename=entry["filename"],
            version=entry.get("version") or 0,
            mime_type=entry.get("mime_type") or "application/octet-stream",
            metadata=dict(entry),
        )

    def all_of_parameter(self, key, build):
        found = [self.of_parameter(key, build)] if key in self.entries else []
        while "%s[%d]" % (key, len(found)) in self.entries:
            found.append(self.of_parameter("%s[%d]" % (key, len(found)), build))
        return found


def _name_of(path):
    return os.path.basename(path or "")


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Output:
    """The output folder, and the metadata of its files."""

    def __init__(self, folder):
        self.folder = folder or "/workspace/output"
        self.known = {}

    def save(self, name, content, mime_type=None, description=None, **more):
        path = os.path.join(self.folder, checked_name(name))
        os.makedirs(self.folder, exist_ok=True)
        if isinstance(content, str):
            content = content.encode("utf-8", "replace")
        write(os.open(path, OPEN_NEW, 0o600), bytes(content))
        known = dict(more, name=name, mime_type=mime_type, description=description)
        self.known[name] = {key: value for key, value in known.items() if value is not None}
        return path

    def names(self):
        try:
            with os.scandir(self.folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
        except OSError:
            return []


def checked_name(name):
    is_text = isinstance(name, str) and name.isprintable()
    if not is_text or name in ("", ".", "..") or "/" in name or "\\" in name or len(name.encode()) > 200:
        raise ValueError("%r is no plain name of a file" % (name,))
    return name


def write(descriptor, content):
    with open(descriptor, "wb", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]


# --- the context ------------------------------------------------------------------------------------------------------


class Mount:
    def __init__(self, entry):
        self.volume_id = entry.get("volume_id", "")
        self.mount_path = entry.get("mount_path", "")
        self.read_only = bool(entry.get("read_only", False))


class Context:
    """The context of a call: what a tool can learn and request."""

    raw_tool_context = None

    def __init__(self, order, staged, output):
        self._order, self._staged, self._output = order, staged, output
        self._config = order.get("tool_config") or {}
        self._pipe = None
        self._model = None
        self._user = user_config(order)
        self.state = {"a2a_context": {"a2a_user_config": self._user}}
        self.session_id = order.get("session_id") or ""
        self.user_id = order.get("user_id") or ""
        self.app_name = order.get("app_name") or ""
        self.task_id = order.get("task_id") or ""
        self.volume_mounts = [Mount(entry) for entry in order.get("volume_mounts") or [] if isinstance(entry, dict)]
        self.auth_token = order.get("tool_oauth_token") or ""
        self.auth_headers = dict(order.get("tool_auth_headers") or {})

    @property
    def user_profile(self):
        profile = self._user.get("user_profile")
        return profile if isinstance(profile, dict) else {}

    @property
    def tool_config(self):
        return self._config

    def get_auth_token(self):
        return self.auth_token

    def get_volume_mount_path(self, mount_path):
        return next((one.mount_path for one in self.volume_mounts if one.mount_path == mount_path), None)

    def get_config(self, key, default=None):
        return self._config.get(key, default)

    def get_config_string(self, key, default=""):
        value = self._config.get(key, default)
        return value if isinstance(value, str) else default

    def get_config_int(self, key, default=0):
        return self._typed(key, "int", int, default)

    def get_config_float(self, key, default=0.0):
        value = self._typed(key, "float", (int, float), default)
        return float(value) if value is not default else default

    def get_config_bool(self, key, default=False):
        value = coerce(self._config.get(key, default), frozenset({"bool"}))
        return value if isinstance(value, bool) else default

    def _typed(self, key, word, kind, default):
        value = coerce(self._config.get(key, default), frozenset({word}))
        return value if isinstance(value, kind) and not isinstance(value, bool) else default

    def _found(self, name, version):
        entry = self._staged.find(name, version)
        if entry is None:
            raise FileNotFoundError("no artifact %r was put in for this call" % (name,))
        return entry

    async def load_artifact(self, filename, version="latest", as_text=False):
        content = read(self._found(filename, version)["local_path"])
        return content.decode() if as_text else content

    async def load_artifact_metadata(self, filename, version="latest"):
        entry = self._found(filename, version)
        return {
            "filename": entry["filename"],
            "mime_type": entry.get("mime_type") or "application/octet-stream",
            "size_bytes": os.stat(entry["local_path"]).st_size,
            "version": entry.get("version") or 0,
        }

    async def list_artifacts(self):
        return self._staged.names()

    async def artifact_exists(self, filename):
        return self._staged.find(filename) is not None

    def load_artifact_by_param(self, param_name):
        entry = self._staged.entries.get(param_name)
        return None if entry is None else read(entry["local_path"])

    def save_artifact(self, filename, content, mime_type="application/octet-stream"):
        return self._output.save(filename, content, mime_type)

    def save_artifact_text(self, filename, content, encoding="utf-8", mime_type="text/plain"):
        return self._output.save(filename, content.encode(encoding), mime_type)

    def list_output_artifacts(self):
        return self._output.names()

    def send_status(self, message):
        if self._pipe is None:
            self._pipe = StatusPipe(self._order.get("status_pipe"))
        return self._pipe.send(shown(message))

    def send_signal(self, signal_data=None, skip_buffer_flush=False):
        return False

    def call_llm(self, system_prompt, user_prompt, temperature=0.7):
        if self._model is None:
            self._model = Model(self._order.get("ipc_socket"))
        return self._model.ask(system_prompt, user_prompt, temperature)


def user_config(order):
    """The user's profile, which comes as JSON text."""
    try:
        found = order.get("a2a_user_config") or {}
        found = from_json(found) if isinstance(found, str) else found
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class LegacyContext(Context):
    """The older, synchronous interface: files by parameter."""

    def load_artifact(self, param_name, version="latest", as_text=False):
        entry = self._staged.find(param_name, version, keys_first=True)
        if entry is None:
            return self._nothing(param_name)
        content = read(entry["local_path"])
        return content.decode() if as_text else content

    def _nothing(self, _name):
        return None

    def load_artifact_text(self, param_name, encoding="utf-8"):
        content = self.load_artifact(param_name)
        return None if not isinstance(content, bytes) else content.decode(encoding)

    def list_artifacts(self):
        return {key: entry["local_path"] for key, entry in self._staged.entries.items()}


class BothContext(LegacyContext):
    """Context for a first parameter without an annotation: its results can be used directly and awaited."""

    def load_artifact(self, param_name, version="latest", as_text=False):
        found = LegacyContext.load_artifact(self, param_name, version, as_text)
        kind = {bytes: AwaitedBytes, str: AwaitedText}.get(type(found))
        return found if kind is None else kind(found)

    def list_artifacts(self):
        paths = AwaitedPaths(LegacyContext.list_artifacts(self))
        paths.names = self._staged.names()
        return paths


class AsyncBothContext(BothContext):
    """The same in a coroutine, where a missing file can be awaited."""

    def _nothing(self, name):
        return Absent(name)


class AwaitedBytes(bytes):
    def __await__(self):
        return bytes(self)
        yield


class AwaitedText(str):
    def __await__(self):
        return str(self)
        yield


class AwaitedPaths(dict):
    names = ()

    def __await__(self):
        return list(self.names)
        yield


class Absent:
    """A missing file: false, and an error when it is awaited."""

    def __init__(self, name):
        self.name = name

    def __bool__(self):
        return False

    def __eq__(self, other):
        return other is None or isinstance(other, Absent)

    def __hash__(self):
        return hash(None)

    def __await__(self):
        raise FileNotFoundError("no artifact %r was put in for this call" % (self.name,))
        yield


class StatusPipe:
    """Sends statuses. A status that cannot be sent at once is dropped: a tool never waits for its listener."""

    def __init__(self, path):
        self.path, self.descriptor, self.is_tried = path, None, False

    def send(self, text):
        if not self._is_open():
            return False
        line = to_json({"status": text}) + b"\n"
        room = MAX_LINE_BYTES
        while len(line) > MAX_LINE_BYTES:
            room = room * 3 // 4
            line = to_json({"status": text[:room] + "…"}) + b"\n"
        try:
            return os.write(self.descriptor, line) == len(line)
        except OSError:
            return False

    def _is_open(self):
        if self.descriptor is None and self.path and not self.is_tried:
            self.is_tried = True
            self.descriptor = self._opened()
        return self.descriptor is not None

    def _opened(self):
        from errno import ENXIO
        from time import sleep

        for attempt in range(5):
            try:
                return os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != ENXIO or attempt == 4:
                    return None
            sleep(0.05)
        return None


class ModelError(RuntimeError):
    """A model is not available, or did not respond."""


class Model:
    """A model, through the socket of this call: JSON-RPC lines, one request at a time."""

    def __init__(self, path):
        from threading import Lock

        self.path, self.line, self.count, self.lock = path, None, 0, Lock()

    def ask(self, system_prompt, user_prompt, temperature):
        params = {"system_prompt": system_prompt, "user_prompt": user_prompt, "temperature": temperature}
        with self.lock:
            self.count += 1
            question = {"jsonrpc": "2.0", "id": str(self.count), "method": "llm/call", "params": plain(params)}
            answer = self._exchange(to_json(question) + b"\n")
        error = answer.get("error")
        if error is not None:
            error = error if isinstance(error, dict) else {}
            raise ModelError("%s (%s)" % (error.get("message"), error.get("code")))
        result = answer.get("result")
        if not isinstance(result, dict) or not isinstance(result.get("text"), str):
            raise ModelError("the answer has no text")
        return result["text"]

    def _exchange(self, question):
        if not self.path:
            raise ModelError("no model is to be had here")
        try:
            if self.line is None:
                import socket

                line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                line.connect(self.path)
                self.line = line
            self.line.sendall(question)
            answer = b""
            while not answer.endswith(b"\n"):
                piece = self.line.recv(65536)
                answer += piece
                if not piece or len(answer) > MAX_ANSWER_BYTES:
                    raise ModelError("the answer did not come whole")
        except OSError as error:
            raise ModelError("no model is to be had here: %s" % error.strerror) from None
        found = from_json(answer.decode())
        return found if isinstance(found, dict) else {}


# --- the call of a function -------------------------------------------------------------------------------------------


class Call:
    """The arguments of a call, and what its tool needs."""

    def __init__(self, order):
        self.order = order
        self.args = dict(order.get("args") or {})
        self.config = order.get("tool_config") or {}
        self.staged = Staged(order)
        self.output = Output(order.get("output_dir"))

    def context(self, kind=Context):
        return kind(self.order, self.staged, self.output)

    def context_for(self, parameter, function):
        """An instance of the class that the tool asks for, if it can be created outside of its own program."""
        named = class_called(CONTEXT_NAMES, parameter, function)
        if named is not None and str(named.__module__).startswith("sam_tool_sdk"):
            return self.context_of_sdk()
        return self.context()

    def context_of_sdk(self):
        from sam_tool_sdk.context_facade import SandboxToolContextFacade
        from sam_tool_sdk.tool_options import VolumeMount

        order, entries = self.order, self.staged.entries
        return SandboxToolContextFacade(
            status_pipe_path=order.get("status_pipe") or "",
            tool_config=self.config,
            artifacts={entry["filename"]: entry for entry in entries.values()},
            output_dir=self.output.folder,
            user_id=order.get("user_id") or "",
            session_id=order.get("session_id") or "",
            app_name=order.get("app_name") or "",
            artifact_paths={key: entry["local_path"] for key, entry in entries.items()},
            auth_token=order.get("tool_oauth_token") or "",
            task_id=order.get("task_id") or "",
            ipc_socket_path=order.get("ipc_socket") or "",
            volume_mounts=[VolumeMount.from_dict(one) for one in order.get("volume_mounts") or []],
            a2a_user_config=order.get("a2a_user_config") or "",
        )

    def put_artifacts(self, given, name, is_list, is_optional, build):
        if is_list:
            found = self.staged.all_of_parameter(name, build)
            wanted = given.get(name)
            is_short = isinstance(wanted, (list, tuple)) and len(found) < len(wanted)
        else:
            found = self.staged.of_parameter(name, build)
            is_short = found is None and given.get(name) is not None
        if is_short:
            raise Failed("Call error: an artifact of the parameter %r is not there" % name)
        if found or name in given or not is_optional:
            given[name] = found


def class_called(names, parameter, function):
    """The class behind an annotation, if it can be found."""
    pending = [parameter.annotation]
    for _ in range(16):
        if not pending:
            break
        one = pending.pop()
        if isinstance(one, type) and one.__name__ in names:
            return one
        pending.extend(getattr(one, "__args__", ()) or ())
    known = getattr(function, "__globals__", {})
    for name in names:
        if name in parameter.words and isinstance(known.get(name), type):
            return known[name]
    return None


def artifact_builder(named):
    """The tool's own artifact class, or ours if that needs something else."""

    def build(**about):
        if named is not None:
            try:
                return named(**about)
            except TypeError:
                pass
        return Artifact(**about)

    return build


def run_function(function, call, found, first=()):
    """Calls a function with the arguments of its signature; runs a coroutine to its end."""
    given = dict(call.args)
    if found is None:
        return finish(function(*first, **given))
    found = found[len(first) :]
    for one in found:
        if one.kind in (0, 1, 3) and one.name in given:
            given[one.name] = coerce(given[one.name], one.words)
    has_context = inject(function, call, found, given)
    if not has_context and found and found[0].kind in (0, 1) and found[0].name not in given:
        context = context_of_first(found[0], function)
        if context is not None:
            given[found[0].name] = call.context(context)
    by_place = check(function, found, given)
    return finish(function(*first, *by_place, **given))


def inject(function, call, found, given):
    """Adds arguments that are requested by annotation, and the configuration; returns whether a context was among them."""
    for one in found:
        if one.kind in (2, 4):
            continue
        if one.is_context:
            given[one.name] = call.context_for(one, function)
        elif one.is_artifact:
            build = artifact_builder(class_called(("Artifact",), one, function))
            call.put_artifacts(given, one.name, one.is_list, one.is_optional, build)
            if not one.has_default:
                given.setdefault(one.name, None)
        elif one.name == "tool_config":
            given.setdefault(one.name, call.config)
    return any(one.is_context for one in found)


def context_of_first(first, function):
    """The context for a first parameter without a matching argument; none if an argument is missing."""
    if first.has_default and first.name not in ("ctx", "context"):
        return None
    if first.has_default and first.default is not None:
        return None
    if first.annotation is Parameter:
        return LegacyContext
    if not first.may_be_context and first.name not in ("ctx", "context", "tool_context"):
        return None
    # CO_COROUTINE
    is_async = getattr(getattr(function, "__code__", None), "co_flags", 0) & 0x80
    return AsyncBothContext if is_async else BothContext


def check(function, found, given):
    """Checks the arguments before the tool runs. Takes out those that are passed by position."""
    names = {one.name for one in found if one.kind in (0, 1, 3)}
    name = getattr(function, "__name__", "the tool")
    unknown = [key for key in given if key not in names]
    if unknown and not any(one.kind == 4 for one in found):
        raise Failed("Call error: %s() got an unexpected argument %r" % (name, unknown[0]))
    missing = [one.name for one in found if one.kind in (0, 1, 3) and not one.has_default and one.name not in given]
    if missing:
        listed = ", ".join(map(repr, missing))
        raise Failed("Call error: %s() misses %d required argument(s): %s" % (name, len(missing), listed))
    by_place = []
    for one in found:
        if one.kind != 0:
            break
        by_place.append(given.pop(one.name, one.default))
    return by_place


def finish(result):
    if not hasattr(type(result), "__await__"):
        return result
    import asyncio

    async def whole():
        return await result

    return asyncio.run(whole())


# --- results ----------------------------------------------------------------------------------------------------------


def normalised(result, output):
    """Converts a return value to a JSON object."""
    if isinstance(result, dict):
        return plain(result)
    if hasattr(result, "data_objects") and not isinstance(result, type):
        return plain(without_artifacts(result, output))
    if result is None or isinstance(result, str):
        return {"text": plain(result), "data_objects": []}
    if isinstance(result, (bytes, bytearray)):
        return {"text": text_of(bytes(result))[0], "data_objects": []}
    return {"text": shown(result), "data_objects": []}


def without_artifacts(result, output):
    """A tool's result, with its files moved to the output folder."""
    objects = list(result.data_objects or ())
    left = [one for one in objects if not put_out(one, output)]
    if len(left) < len(objects):
        try:
            result.data_objects = left
        except Exception:  # frozen
            dumped = dict(dump(result))
            dumped["data_objects"] = left
            return dumped
    dumped = dump(result)
    if dumped is result:
        dumped = {name: value for name, value in vars(result).items() if not name.startswith("_")}
    return dumped


def put_out(one, output):
    get = one.get if isinstance(one, dict) else lambda name: getattr(one, name, None)
    disposition = get("disposition")
    disposition = getattr(disposition, "value", disposition)
    content = get("content")
    if disposition not in TO_ARTIFACTS or content is None:
        return False
    if get("is_binary") is True and isinstance(content, str):
        from binascii import a2b_base64

        content = a2b_base64(content)
    about = {"description": get("description"), "preview": get("preview"), "metadata": get("metadata")}
    output.save(get("name"), content, get("mime_type"), tags=get("tags"), **about)
    return True


def told(error):
    """Formats an exception: type, message, and location in the tool. Nothing of this file, and no paths."""
    try:
        from importlib import import_module
        from traceback import StackSummary, TracebackException

        whole = TracebackException(type(error), error, error.__traceback__, limit=-64)
        pending = [whole]
        while pending:
            one = pending.pop()
            ours = ("<frozen ", told.__code__.co_filename, import_module.__code__.co_filename)
            frames = [frame for frame in one.stack if not frame.filename.startswith(ours)]
            for frame in frames:
                frame.filename = short(frame.filename)
            one.stack = StackSummary.from_list(frames)
            if isinstance(getattr(one, "filename", None), str):  # of a syntax error
                one.filename = short(one.filename)
            pending += [other for other in (one.__cause__, one.__context__) if other is not None]
            pending += getattr(one, "exceptions", None) or []
        return "".join(whole.format())
    except Exception:
        return type(error).__name__


def short(path):
    """A path as the tool's author knows it: relative to the import path."""
    for folder in sorted(filter(None, sys.path), key=len, reverse=True):
        if path.startswith(folder.rstrip("/") + "/"):
            return path[len(folder.rstrip("/")) + 1 :]
    return os.path.basename(path)


def cut(text):
    if len(text) <= MAX_ERROR_LENGTH:
        return text
    half = MAX_ERROR_LENGTH // 2
    return text[:half] + "\n… (%d characters left out) …\n" % (len(text) - 2 * half) + text[-half:]


def failure(error):
    """The error message of a tool's exception for the caller."""
    if isinstance(error, Failed):
        return str(error)
    if isinstance(error, SystemExit):
        words_of = "the tool ended its program (exit %s) instead of returning" % shown(error.code)
    else:
        words_of = shown(error) or type(error).__name__
    return "Execution error: %s\n%s" % (words_of, told(error))


# --- from order to answer ---------------------------------------------------------------------------------------------


def load(module, attribute):
    """The function or class that the arguments name."""
    from importlib import import_module

    try:
        found = import_module(module)
    except ImportError as error:
        raise Failed("Import error: %s" % error) from None
    except BaseException as error:
        kind = type(error).__name__
        raise Failed("Import error: %s: %s\n%s" % (kind, shown(error), told(error))) from None
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise Failed("Not found: %s" % error) from None
    if not callable(found):
        raise Failed("Call error: %s.%s is not callable" % (module, attribute))
    return found


class Tool:
    """A loaded tool, before its arguments are known."""

    def __init__(self, module, attribute):
        self.where = (module, attribute)
        self.what = load(module, attribute)
        self.is_class = isinstance(self.what, type)
        self.parameters = None if self.is_class else parameters(self.what)

    def warm(self):
        """Imports what a call will need."""
        to_json({})
        if getattr(getattr(self.what, "__code__", None), "co_flags", 0) & 0x80 or self.is_class:
            import asyncio  # noqa: F401


def named_in(order):
    module, attribute = order.get("module"), order.get("class_name") or order.get("function")
    if not (isinstance(module, str) and module and isinstance(attribute, str) and attribute):
        raise Failed("Call error: the order names no module and function")
    return module, attribute


def carry_out(order, order_path, tool):
    """The envelope of a result."""
    call = Call(order)
    try:
        where = named_in(order)
        if tool is None or tool.where != where:
            tool = Tool(*where)
        if order.get("init_mode"):
            return {"result": plain(init_of_class(tool.what, call.config))}
        if getattr(tool.what, "__module__", None) == "sam_tool_sdk.cli":
            return run_sdk_program(tool.what, order_path)
        if order.get("class_name"):
            result = run_class(tool.what, call)
        else:
            result = run_function(tool.what, call, tool.parameters)
        envelope = {"result": normalised(result, call.output)}
        if call.output.known:
            envelope["artifacts"] = plain(list(call.output.known.values()))
        return envelope
    except BaseException as error:
        return {"error": cut(failure(error))}


def run_sdk_program(program, order_path):
    """The entry point of a program made with the public SDK: it reads the arguments and writes the result itself."""
    sys.argv = [sys.argv[0], order_path]
    try:
        program()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    return None


def answer(order, envelope):
    """Writes the result file atomically."""
    try:
        content = to_json(envelope)
    except (ValueError, RecursionError, MemoryError) as error:
        content = to_json({"error": "Execution error: the result cannot be written: %s" % shown(error)})
    path = order.get("result_file")
    if not path:
        os.write(1, content + b"\n")
        return
    try:
        replace(path, content)
    except OSError as error:
        why = "Execution error: the result (%d bytes) cannot be written: %s" % (len(content), error.strerror)
        replace(path, to_json({"error": why}))


def replace(path, content):
    beside = "%s.%d.new" % (path, os.getpid())
    try:
        write(os.open(beside, OPEN_NEW | os.O_EXCL, 0o600), content)
        os.rename(beside, path)
    except OSError:
        try:
            os.unlink(beside)
        except OSError:
            pass
        raise


def run(order_path, tool=None):
    own = os.getpid()
    try:
        with open(order_path, encoding="utf-8") as file:
            order = from_json(file.read())
        if not isinstance(order, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError) as error:
        leave("the order cannot be read: %s" % shown(error), 2)
    envelope = carry_out(order, order_path, tool)
    if os.getpid() != own:
        os._exit(0)  # a child that the tool forked and forgot has nothing to say
    try:
        if envelope is not None:
            answer(order, envelope)
    except BaseException as error:
        leave("the result cannot be written: %s" % shown(error), 3)
    leave(None, 0)


def leave(why, status):
    """Exits at once: threads that a tool left behind do not delay it."""
    try:
        if why:
            sys.stderr.write("airlock: %s\n" % why)
    except BaseException:
        pass
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            pass
    os._exit(status)


class Aside:
    """Redirects printing to standard error: standard output is for the answer."""

    def __enter__(self):
        self.out = os.dup(1)
        os.dup2(2, 1)
        return self

    def say(self, line):
        write(os.dup(self.out), line + b"\n")

    def __exit__(self, *_):
        try:
            sys.stdout.flush()
        except Exception:
            pass
        os.dup2(self.out, 1)
        os.close(self.out)


def park(module, attribute):
    with Aside() as aside:
        try:
            tool = Tool(module, attribute)
            tool.warm()
        except BaseException as error:
            text = " ".join(cut(failure(error)).split())
            aside.say(b"failed " + text[:2000].encode("utf-8", "replace"))
            leave(None, 1)
        aside.say(b"ready")
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 4096)
        line += piece
        if not piece or len(line) > 65536:
            os._exit(0)  # nobody needs it any more
    # Input after the arguments is not for the tool.
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    order_path = line.decode("utf-8", "surrogateescape").rstrip("\n")
    run(order_path, tool)


# --- classes ----------------------------------------------------------------------------------------------------------


def is_of_sdk(kind):
    return any(str(base.__module__).startswith("sam_tool_sdk") for base in kind.__mro__)


def configured(kind, config):
    """The configuration in the class's own model, if it has one."""
    model = getattr(kind, "config_model", None)
    if model is None or not isinstance(config, dict):
        return config
    try:
        for way in ("model_validate", "parse_obj"):
            if callable(getattr(model, way, None)):
                return getattr(model, way)(config)
        return model(**config)
    except Exception as error:
        raise Failed("Execution error: the tool's configuration does not fit: %s" % shown(error)) from None


def instance_of(kind, config, wanted=None):
    """The tool: the class itself, or one of a provider's tools."""
    if not isinstance(kind, type):
        raise Failed("Call error: %s is no class" % getattr(kind, "__name__", "it"))
    if not callable(getattr(kind, "get_all_tools_for_framework", None)):
        return kind(tool_config=configured(kind, config))
    provider = kind()
    provider._tool_config = config
    tools = provider.get_all_tools_for_framework(configured(kind, config))
    fitting = [tool for tool in tools if tool.tool_name in (wanted or ())] or (tools if len(tools) == 1 else [])
    if not fitting:
        names = ", ".join(sorted(tool.tool_name for tool in tools))
        raise Failed("Not found: %s has the tools %s; the order names none of them" % (kind.__name__, names))
    return fitting[0]


def run_class(kind, call):
    order = call.order
    tool = instance_of(kind, call.config, (order.get("function"), order.get("tool_name")))
    given = dict(call.args)
    properties = lowered(getattr(tool, "parameters_schema", None) or {}).get("properties") or {}
    for name, schema in properties.items():
        if name in given and isinstance(schema, dict) and isinstance(schema.get("type"), str):
            given[name] = coerce(given[name], frozenset({schema["type"]}))
    is_sdk = is_of_sdk(type(tool))
    build = artifact_builder(sys.modules["sam_tool_sdk"].Artifact if is_sdk else artifact_class(tool))
    for name, about in dict(getattr(tool, "artifact_params", None) or {}).items():
        get = about.get if isinstance(about, dict) else lambda key, it=about: getattr(it, key, False)
        call.put_artifacts(given, name, bool(get("is_list")), bool(get("is_optional")), build)
    context = call.context_of_sdk() if is_sdk else call.context()
    asked = getattr(tool, "ctx_facade_param_name", None)
    if asked:
        given[asked] = context
    return finish(tool._run_async_impl(args=given, tool_context=context if is_sdk else None))


def artifact_class(tool):
    found = getattr(sys.modules.get(type(tool).__module__), "Artifact", None)
    return found if isinstance(found, type) else None


def init_of_class(kind, config, wanted=None):
    """The description of an instance after its `init`."""
    tool = instance_of(kind, config, wanted)

    async def asked():
        if callable(getattr(tool, "init", None)):
            await tool.init(component=None, tool_config=config)
        try:
            schema = getattr(tool, "parameters_schema", None)
            return {
                "tool_description": getattr(tool, "tool_description", None),
                "parameters_schema": None if schema is None else lowered(schema),
                "ctx_facade_param_name": getattr(tool, "ctx_facade_param_name", None),
                "artifact_params": artifact_params_of(tool),
                "config_schema": plain(getattr(tool, "config_schema", None) or None),
                "timeout_seconds": getattr(tool, "timeout_seconds", None),
                "tool_name": getattr(tool, "tool_name", None),
            }
        finally:
            if callable(getattr(tool, "cleanup", None)):
                try:
                    await tool.cleanup(component=None, tool_config=config)
                except Exception as error:
                    sys.stderr.write("airlock: cleanup failed: %s\n" % shown(error))

    try:
        return {name: value for name, value in finish(asked()).items() if value is not None}
    except Failed:
        raise
    except Exception as error:
        raise Failed("Init error: %s\n%s" % (shown(error), told(error))) from None


def artifact_params_of(tool):
    found = {}
    for name, about in dict(getattr(tool, "artifact_params", None) or {}).items():
        get = about.get if isinstance(about, dict) else lambda key, it=about: getattr(it, key, False)
        found[name] = {key: bool(get(key)) for key in ("is_list", "is_optional")}
    return found or None


TYPES = ("OBJECT", "STRING", "INTEGER", "NUMBER", "BOOLEAN", "ARRAY", "NULL")
SPELLINGS = {
    "any_of": "anyOf",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_items": "minItems",
    "max_items": "maxItems",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
    "property_ordering": "propertyOrdering",
    "additional_properties": "additionalProperties",
}


def lowered(schema):
    """Converts a schema of the older kind to JSON Schema: lower case types, JSON Schema's keywords."""
    if not isinstance(schema, dict):
        if callable(getattr(schema, "model_dump", None)):
            schema = schema.model_dump(exclude_none=True)
        schema = dump(schema) if not isinstance(schema, dict) else schema
    if not isinstance(schema, dict):
        return {}
    found = {}
    for key, value in schema.items():
        key = SPELLINGS.get(key, key)
        value = getattr(value, "value", value) if key == "type" else value
        if key == "type" and isinstance(value, str):
            value = value.lower() if value in TYPES else value
            if value == "TYPE_UNSPECIFIED":
                continue
        elif key in ("properties", "$defs") and isinstance(value, dict):
            value = {name: lowered(one) for name, one in value.items()}
        elif key in ("items", "additionalProperties") and not isinstance(value, (bool, list)):
            value = lowered(value)
        elif key in ("anyOf", "oneOf", "allOf") and isinstance(value, (list, tuple)):
            value = [lowered(one) for one in value]
        found[key] = value
    return found


# --- what tools say of themselves -------------------------------------------------------------------------------------


def describe_class(module, name, config_path=None):
    config = {}
    if config_path:
        with open(config_path, encoding="utf-8") as file:
            config = from_json(file.read())
    provider, _, tool = name.partition(":")
    said = init_of_class(load(module, provider), config, (tool,))
    renamed = {"tool_description": "description", "parameters_schema": "parameters"}
    said.pop("tool_name", None)
    return {renamed.get(key, key): value for key, value in said.items()}


def describe(module, attribute):
    """A function's parameters as JSON Schema, from annotations, defaults and docstring."""
    function = load(module, attribute)
    if isinstance(function, type):
        return describe_class(module, attribute)
    found = parameters(function) or []
    hints = hints_of(function)
    description, instructions, documented = documentation(function)
    properties, required, artifacts, context = {}, [], {}, None
    for at, one in enumerate(found):
        if one.kind in (2, 4) or one.name in ("self", "cls", "tool_config"):
            continue
        is_first = at == 0 and not any(other.is_context for other in found)
        if one.is_context or is_first and is_context_by_look(one):
            context = one.name if one.is_context else context
            continue
        schema = schema_of_parameter(one, hints)
        if one.name in documented:
            schema["description"] = documented[one.name]
        properties[one.name] = schema
        if not one.has_default and not (one.is_artifact and one.is_optional):
            required.append(one.name)
        if one.is_artifact:
            artifacts[one.name] = {"is_list": one.is_list, "is_optional": one.is_optional}
    whole = {"type": "object", "properties": properties}
    if required:
        whole["required"] = required
    said = {
        "description": description,
        "parameters": whole,
        "artifact_params": artifacts,
        "instructions": instructions,
        "ctx_facade_param_name": context,
        "config_schema": getattr(function, "_config_schema", None),
        "timeout_seconds": getattr(function, "_timeout_seconds", None),
    }
    return {key: value for key, value in said.items() if value}


def is_context_by_look(one):
    if one.name in ("ctx", "context", "tool_context"):
        return one.annotation is Parameter or one.may_be_context
    return any("Context" in word for word in one.words)


def hints_of(function):
    """Evaluates annotations that are strings; one that cannot be evaluated does not affect the others."""
    from typing import get_type_hints

    try:
        return get_type_hints(function, include_extras=True)
    except Exception:
        pass
    found = {}
    for name, note in annotations(function).items():
        try:
            found[name] = eval(note, getattr(function, "__globals__", {})) if isinstance(note, str) else note
        except Exception:
            found[name] = next((kind for kind in (int, float, bool, list, dict) if kind.__name__ in words(note)), str)
    return found


def schema_of_parameter(one, hints):
    if one.is_artifact:
        item = {"type": "string", "description": "The name of an artifact."}
        return {"type": "array", "items": item} if one.is_list else item
    kind = hints.get(one.name, one.annotation)
    if kind is Parameter:
        known = one.has_default and isinstance(one.default, (bool, int, float, list, dict))
        kind = type(one.default) if known else str
    schema = schema_of(kind)
    default = one.default
    if one.has_default and default is not None and isinstance(default, (str, bool, int, float, list, dict, tuple)):
        schema["default"] = plain(default)
    return schema


def schema_of(kind, depth=0):
    import typing

    simple = {str: "string", int: "integer", float: "number", bool: "boolean", bytes: "string", type(None): "null"}
    if kind in (typing.Any, object) or depth > 8:
        return {"type": "string"} if depth == 0 else {}
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    try:
        if kind in simple:
            return {"type": simple[kind]}
    except TypeError:
        return {"type": "string"}
    if hasattr(kind, "__metadata__"):  # Annotated
        return annotated(kind, inside[0], depth)
    if origin is typing.Union or type(kind).__name__ == "UnionType":
        several = [schema_of(one, depth + 1) for one in inside if one is not type(None)]
        return several[0] if len(several) == 1 else {"anyOf": several}
    if origin is typing.Literal:
        kinds = {type(one) for one in inside}
        name = simple.get(kinds.pop(), "string") if len(kinds) == 1 else "string"
        return {"type": name, "enum": list(inside)}
    if kind in (list, set, tuple, frozenset) or is_kind(origin, ("list", "set", "tuple", "frozenset", "Sequence", "Iterable")):
        return {"type": "array", "items": schema_of(inside[0], depth + 1) if inside else {"type": "string"}}
    if kind is dict or is_kind(origin, ("dict", "Mapping", "MutableMapping")):
        return {"type": "object"}
    return schema_of_class(kind, depth)


def annotated(kind, inner, depth):
    schema = schema_of(inner, depth)
    for note in kind.__metadata__:
        text = note if isinstance(note, str) else getattr(note, "description", None)
        if isinstance(text, str) and text:
            schema.setdefault("description", text)
    return schema


def is_kind(origin, names):
    return isinstance(origin, type) and origin.__name__ in names


def schema_of_class(kind, depth):
    if not isinstance(kind, type):
        return {"type": "string"}
    if "Enum" in type(kind).__name__:
        return {"type": "string", "enum": [shown(one.value) for one in kind]}
    if kind.__name__ in ("datetime", "date", "time") and kind.__module__ == "datetime":
        return {"type": "string", "format": {"datetime": "date-time"}.get(kind.__name__, kind.__name__)}
    fields = fields_of(kind)
    if fields is None:
        return {"type": "string"}
    hints = hints_of(kind)
    properties, required = {}, []
    for name, is_required, description in fields:
        properties[name] = schema_of(hints.get(name, str), depth + 1)
        if isinstance(description, str):
            properties[name].setdefault("description", description)
        if is_required:
            required.append(name)
    schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema


def fields_of(kind):
    """Name, whether required, and description of each field of a TypedDict, dataclass or pydantic model."""
    if hasattr(kind, "__required_keys__"):
        return [(name, name in kind.__required_keys__, None) for name in kind.__annotations__]
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses

        missing = dataclasses.MISSING
        return [
            (one.name, one.default is missing and one.default_factory is missing, one.metadata.get("description"))
            for one in dataclasses.fields(kind)
        ]
    fields = getattr(kind, "model_fields", None) or getattr(kind, "__fields__", None)
    if not isinstance(fields, dict):
        return None
    return [
        (name, one.is_required() if callable(getattr(one, "is_required", None)) else bool(getattr(one, "required", False)),
         getattr(one, "description", None))
        for name, one in fields.items()
    ]


def documentation(function):
    """Splits a docstring: first paragraph, other text, and parameters (Google or Sphinx style)."""
    from inspect import getdoc

    lines = (getdoc(function) or "").splitlines()
    first = next((at for at, line in enumerate(lines) if not line.strip()), len(lines))
    description = " ".join(line.strip() for line in lines[:first])
    documented, body, current, is_inside = {}, [], None, False
    for line in lines[first:]:
        text = line.strip()
        if text.startswith(":param "):
            name, _, words_of = text[len(":param ") :].partition(":")
            documented[name.split()[-1] if name.split() else name] = words_of.strip()
        elif text.lower() in ("args:", "arguments:", "parameters:"):
            is_inside, current = True, None
        elif is_inside and line and not line[0].isspace():
            is_inside = False
            body.append(line)
        elif is_inside:
            name, colon, words_of = text.partition(":")
            name = name.split("(")[0].strip().lstrip("*")
            indent = len(line) - len(line.lstrip())
            if colon and name.isidentifier() and indent <= 4:
                current = name
                documented[name] = words_of.strip()
            elif current and text:
                documented[current] = (documented[current] + " " + text).strip()
        else:
            body.append(line)
    return description, "\n".join(body).strip(), documented


def say(make):
    with Aside() as aside:
        try:
            aside.say(to_json(plain(make())))
        except BaseException as error:
            leave(cut(failure(error)), 1)
    leave(None, 0)


def tidy():
    """Prepares the process for a tool: no imports from this file's folder, and only the promised environment variables."""
    if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]
    for name in [name for name in os.environ if name not in VARIABLES]:
        del os.environ[name]
    os.environ["HOME"] = "/tmp"


def main(argv):
    tidy()
    sys.argv = argv[:1]
    if argv[1:2] == ["--park"] and len(argv) == 4:
        park(*argv[2:])
    elif argv[1:2] == ["--describe"] and len(argv) == 4:
        say(lambda: describe(*argv[2:]))
    elif argv[1:2] == ["--schema-class"] and len(argv) in (4, 5):
        say(lambda: describe_class(*argv[2:]))
    elif len(argv) == 2 and not argv[1].startswith("--"):
        run(argv[1])
    else:
        leave("usage: runner.py ARGS_FILE | --park | --describe MODULE ATTRIBUTE | --schema-class MODULE CLASS [FILE]", 2)


if __name__ == "__main__":
    main(sys.argv)
