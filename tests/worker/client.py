"""An agent of the mesh, as far as tools see one: written from the description of the wire, with message models of its own
that refuse what real agents refuse. Orders come as JSON lines on standard input, events go out as JSON lines.

Orders: {"do": "publish", "topic", "body" | "bytes" (base64), "properties"}, {"do": "listen", "topic"}, {"do": "leave"}.
Events: connected, published, message. A message says its kind (by its topic), its id (by its topic), what it says, and
`problem`: why an agent would refuse it, if so.
"""

import base64
import json
import re
import socket
import sys
import threading
import time
from datetime import datetime, timedelta
from typing import Any, Literal, Optional, Union

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

OUTPUT = threading.Lock()


def tell(event, **what):
    with OUTPUT:
        sys.stdout.write(json.dumps({"event": event, **what}) + "\n")
        sys.stdout.flush()


# ---- What an agent accepts -------------------------------------------------------------------------------------------


class Created(BaseModel):
    filename: str
    version: int
    mime_type: str
    size_bytes: int
    description: Optional[str] = None


class Result(BaseModel):
    tool_result: dict[str, Any]
    execution_time_ms: int
    timed_out: bool = False
    created_artifacts: list[Created] = []


class Error(BaseModel):
    code: str
    message: str
    data: Optional[dict[str, Any]] = None


CODES = """SANDBOX_TIMEOUT SANDBOX_FAILED TOOL_NOT_FOUND TOOL_NOT_AVAILABLE IMPORT_ERROR EXECUTION_ERROR TOOL_ERROR
ARTIFACT_ERROR INVALID_REQUEST INTERNAL_ERROR INIT_ERROR AUTHENTICATION_FAILED RESOURCE_EXHAUSTED""".split()


class Answer(BaseModel):
    """The JSON `id` is compared with the topic's here, though agents of today do not: both must be right."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: str
    error: Optional[Error] = None

    @model_validator(mode="after")
    def code_is_known(self):
        if self.error and self.error.code not in CODES:
            raise ValueError(f"nobody knows the code {self.error.code}")
        return self


class Response(Answer):
    result: Optional[Result] = None


class StatusParams(BaseModel):
    task_id: str
    status_text: str
    timestamp: str

    @field_validator("timestamp")
    @classmethod
    def in_utc_with_microseconds(cls, text):
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", text):
            raise ValueError(f"not of the form that agents write: {text}")
        age = datetime.now().astimezone() - datetime.fromisoformat(text)
        if abs(age) > timedelta(minutes=10):
            raise ValueError(f"not of today: {text}")
        return text


class Status(BaseModel):
    jsonrpc: Literal["2.0"] = "2.0"
    method: Literal["sam_remote_tool/status"]
    params: StatusParams


class Schema(BaseModel):
    """What the agent's model library takes as a schema of parameters; it refuses every other key."""

    model_config = ConfigDict(extra="forbid")
    type: Optional[str] = None
    title: Optional[str] = None
    description: Optional[str] = None
    format: Optional[str] = None
    pattern: Optional[str] = None
    nullable: Optional[bool] = None
    default: Optional[Any] = None
    example: Optional[Any] = None
    enum: Optional[list[str]] = None
    properties: Optional[dict[str, "Schema"]] = None
    required: Optional[list[str]] = None
    items: Optional["Schema"] = None
    anyOf: Optional[list["Schema"]] = None
    propertyOrdering: Optional[list[str]] = None
    additionalProperties: Optional[Any] = None
    minimum: Optional[float] = None
    maximum: Optional[float] = None
    minLength: Optional[int] = None
    maxLength: Optional[int] = None
    minItems: Optional[int] = None
    maxItems: Optional[int] = None
    minProperties: Optional[int] = None
    maxProperties: Optional[int] = None

    @field_validator("type")
    @classmethod
    def is_a_type(cls, name):
        known = ["STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"]
        if name is not None and name.upper() not in known:
            raise ValueError(f"no type: {name}")
        return name


class ArtifactParameter(BaseModel):
    is_list: bool = False
    is_optional: bool = False
    filename_key: Optional[str] = None


class ConfigKey(BaseModel):
    key: str
    type: str = "string"
    description: Optional[str] = None
    required: bool = False
    secret: bool = False
    default: Optional[Any] = None
    options: Optional[list[Any]] = None


class Card(BaseModel):
    tool_name: str
    description: Optional[str] = None
    parameters: Optional[Schema] = None
    artifact_params: Optional[dict[str, ArtifactParameter]] = None
    instructions: Optional[str] = None
    config_schema: Optional[list[ConfigKey]] = None
    ctx_facade_param_name: Optional[str] = None


class OldCard(BaseModel):
    """The same, as the generation before knew it."""

    tool_description: Optional[str] = None
    parameters_schema: Optional[Schema] = None
    ctx_facade_param_name: Optional[str] = None


class Init(BaseModel):
    jsonrpc: Literal["2.0"] = "2.0"
    method: Literal["sam_remote_tool/init"]
    params: Card


class InitAnswer(Answer):
    result: Optional[Union[Card, OldCard]] = None


class RemovedParams(BaseModel):
    tool_name: str


class Removed(BaseModel):
    jsonrpc: Literal["2.0"] = "2.0"
    method: Literal["sam_remote_tool/removed"]
    params: RemovedParams


def response(body):
    is_about_init = isinstance(body.get("result"), dict) and "tool_result" not in body["result"]
    told = (InitAnswer if is_about_init else Response).model_validate(body)
    if (told.result is None) == (told.error is None):
        raise ValueError("an answer is a result or an error, one of them")
    return told


MODELS = {
    "response": response,
    "status": Status.model_validate,
    "init": Init.model_validate,
    "removed": Removed.model_validate,
}


def told_by(topic, payload, properties):
    """What an agent makes of a message."""
    place = topic.split("/sam_remote_tool/", 1)[-1].split("/")
    kind, identity = place[0], "/".join(place[2 if place[0] in ("response", "status") else 1 :])
    body, problem = None, None
    try:
        body = payload if isinstance(payload, dict) else json.loads(bytes(payload).decode("utf-8"))
        # Whoever asks by `init` has an id, and is an agent of the generation before.
        if kind in MODELS and not (kind == "init" and "id" in body):
            MODELS[kind](body)
        if kind == "response" and body["id"] != identity:
            problem = f"the id is {body['id']!r} and the topic's is {identity!r}"
    except (ValidationError, ValueError, KeyError, AttributeError, UnicodeDecodeError) as error:
        problem = str(error)
    tell(
        "message",
        kind=kind,
        id=identity,
        agent=place[1] if kind in ("response", "status") and len(place) > 1 else None,
        topic=topic,
        body=body,
        properties=properties,
        problem=problem,
        at_ms=int(time.time() * 1000),
    )


# ---- How it reaches a broker -----------------------------------------------------------------------------------------


class Mqtt:
    def __init__(self, settings, patterns):
        import paho.mqtt.client as paho

        self.is_five = settings["way"] == "mqtt5"
        self.patterns = patterns
        options = {} if self.is_five else {"clean_session": False}
        protocol = paho.MQTTv5 if self.is_five else paho.MQTTv311
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=f"agent-{settings['name']}", protocol=protocol, **options
        )
        if settings.get("user"):
            self.client.username_pw_set(settings["user"], settings.get("password"))
        if settings.get("authority"):
            self.client.tls_set(
                ca_certs=settings["authority"], certfile=settings.get("certificate"), keyfile=settings.get("key")
            )
        self.client.on_connect = self.connected
        self.client.on_subscribe = self.subscribed
        self.client.on_message = self.arrived
        self.client.on_publish = self.published
        self.client.reconnect_delay_set(min_delay=1, max_delay=1)
        self.client.max_queued_messages_set(0)
        more = {}
        if self.is_five:
            from paho.mqtt.packettypes import PacketTypes
            from paho.mqtt.properties import Properties

            # What comes while the broker is away is kept for us, as an agent's queue would.
            lasting = Properties(PacketTypes.CONNECT)
            lasting.SessionExpiryInterval = 600
            more = {"clean_start": False, "properties": lasting}
        self.client.connect(settings["host"], settings["port"], **more)
        self.client.loop_start()

    def connected(self, client, _data, _flags, reason, _properties):
        if reason.is_failure:
            tell("refused", why=str(reason))
            return
        client.subscribe([(translated(pattern), 1) for pattern in self.patterns])

    def subscribed(self, _client, _data, _mid, reasons, _properties):
        failed = [str(reason) for reason in reasons if reason.is_failure]
        tell("refused" if failed else "connected", why=failed)

    def arrived(self, _client, _data, message):
        extras = getattr(message.properties, "UserProperty", []) if message.properties else []
        told_by(message.topic, message.payload, dict(extras))

    def published(self, _client, _data, mid, _reason, _properties):
        tell("published", mid=mid)

    def publish(self, topic, payload, properties):
        extras = None
        if self.is_five and properties:
            from paho.mqtt.packettypes import PacketTypes
            from paho.mqtt.properties import Properties

            extras = Properties(PacketTypes.PUBLISH)
            extras.UserProperty = [(key, str(value)) for key, value in properties.items()]
        return self.client.publish(topic, payload, qos=1, properties=extras).mid

    def listen(self, pattern):
        self.patterns.append(pattern)
        self.client.subscribe(translated(pattern), 1)

    def leave(self):
        self.client.disconnect()
        self.client.loop_stop()


def translated(pattern):
    """From the words of the mesh to those of MQTT."""
    levels = ["+" if level == "*" else level for level in pattern.split("/")]
    return "/".join(levels[:-1] + ["#" if levels[-1] == ">" else levels[-1]])


class Lines:
    """One connection of the dev broker's dialect: a question, an answer."""

    def __init__(self, settings):
        self.socket = socket.create_connection((settings["host"], settings["port"]))
        self.file = self.socket.makefile("rwb")
        self.turn = threading.Lock()

    def ask(self, command, **fields):
        with self.turn:
            self.file.write(json.dumps({"cmd": command, **fields}).encode() + b"\n")
            self.file.flush()
            line = self.file.readline()
        if not line:
            raise ConnectionError("the broker hung up")
        answer = json.loads(line)
        if answer["status"] == "ERROR":
            raise ConnectionError(f"{command}: {answer}")
        return answer


class Dev:
    def __init__(self, settings, patterns):
        self.count = 0
        self.incoming, self.outgoing = Lines(settings), Lines(settings)
        name = f"agent-{settings['name']}"
        self.outgoing.ask("CONNECT", client_id=f"{name}-out", queue_name=f"{name}-out", subscriptions=[])
        self.incoming.ask("CONNECT", client_id=name, queue_name=name, subscriptions=patterns)
        threading.Thread(target=self.receive, daemon=True).start()
        tell("connected", why=[])

    def receive(self):
        while True:
            try:
                answer = self.incoming.ask("RECEIVE", timeout_ms=250)
            except (ConnectionError, OSError, ValueError):
                return
            if answer["status"] == "OK":
                message = answer["message"]
                told_by(message["topic"], message["payload"], message["user_properties"] or {})
                self.incoming.ask("ACK", message_id=message["message_id"])

    def publish(self, topic, payload, properties):
        self.count += 1
        # Its payloads are JSON; what is none travels as a text.
        try:
            body = json.loads(payload)
        except ValueError:
            body = payload.decode("utf-8", "replace")
        self.outgoing.ask("PUBLISH", topic=topic, payload=body, user_properties=properties)
        tell("published", mid=self.count)
        return self.count

    def listen(self, pattern):
        self.incoming.ask("SUBSCRIBE", topic_pattern=pattern)
        tell("connected", why=[])

    def leave(self):
        self.outgoing.ask("DISCONNECT")


class Amqp:
    """AMQP 1.0. `address` says how the broker calls a topic: `{}` is it, with its levels."""

    def __init__(self, settings, patterns):
        from proton import Message
        from proton.utils import BlockingConnection

        self.message = Message
        self.settings = settings
        url = f"amqp://{settings['host']}:{settings['port']}"
        options = {"user": settings.get("user", "guest"), "password": settings.get("password", "guest")}
        self.connect = lambda: BlockingConnection(url, timeout=60, allowed_mechs="PLAIN", **options)
        self.count = 0
        self.senders = {}
        self.outgoing = self.connect()
        self.incoming = self.connect()
        self.receivers = [self.incoming.create_receiver(self.address(p), credit=100) for p in patterns]
        threading.Thread(target=self.receive, daemon=True).start()
        tell("connected", why=[])

    def address(self, topic):
        if self.settings.get("dots"):
            topic = topic.replace(".", "%2F").replace("/", ".").replace(">", "#")
        return self.settings.get("address", "topic://{}").replace("{}", topic)

    def topic(self, message):
        """Where a message was sent to, in the words of the mesh."""
        before = self.settings.get("address", "topic://{}").split("{}")[0]
        topic = (message.address or "").removeprefix(before)
        return topic.replace(".", "/").replace("%2F", ".") if self.settings.get("dots") else topic

    def receive(self):
        from proton import Timeout

        while True:
            for receiver in self.receivers:
                try:
                    message = receiver.receive(timeout=0.05)
                except Timeout:
                    continue
                receiver.accept()
                body = message.body
                payload = body.encode() if isinstance(body, str) else bytes(body)
                told_by(self.topic(message), payload, {k: str(v) for k, v in (message.properties or {}).items()})

    def publish(self, topic, payload, properties):
        address = self.address(topic)
        if address not in self.senders:
            self.senders[address] = self.outgoing.create_sender(address)
        self.senders[address].send(
            self.message(body=payload, properties=properties, durable=True, address=address, inferred=True)
        )
        self.count += 1
        tell("published", mid=self.count)
        return self.count

    def leave(self):
        self.outgoing.close()


WAYS = {"mqtt5": Mqtt, "mqtt3": Mqtt, "dev": Dev, "amqp": Amqp}


def main():
    settings = json.loads(sys.argv[1])
    base = f"{settings['namespace']}/a2a/v1/sam_remote_tool"
    patterns = [f"{base}/{kind}/{settings['name']}/>" for kind in ("response", "status")]
    patterns += [f"{base}/init/>", f"{base}/removed/>"]
    agent = WAYS[settings["way"]](settings, patterns)
    for line in sys.stdin:
        order = json.loads(line)
        match order["do"]:
            case "publish":
                raw = order.get("bytes")
                payload = base64.b64decode(raw) if raw is not None else json.dumps(order["body"]).encode()
                mid = agent.publish(order["topic"], payload, order.get("properties") or {})
                tell("sent", number=order["number"], mid=mid)
            case "listen":
                agent.listen(order["topic"])
            case "leave":
                break
    agent.leave()


if __name__ == "__main__":
    main()
