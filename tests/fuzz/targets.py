"""The targets: what is done with an input, and the seeds to begin with.

Each raises an exception that says which promise was broken, or lets one out that nobody promised.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from pubsubd.engine.engine import Damaged, Engine
from pubsubd.eod.ack_id import AckIds, AckToken
from pubsubd.model import filters, limits, names, paging
from pubsubd.model.errors import InvalidArgument
from pubsubd.model.matching import compile_filter
from pubsubd.schema.compiled import check_definition, compiled, refusal
from pubsubd.schema.mismatch import Mismatch
from pubsubd.storage.store import Loaded
from pubsubd.wire import pb
from tests.fuzz.calls import CALLS, NAMES
from tests.fuzz.live import PROJECT, Live, judge_refusal
from tests.fuzz.source import Source
from tests.unit.storage.fake_store import SECRET, FakeStore

_STEPS_MAX = 16
_CLIENTS = ("grpc-python/1.71.0 ipv4:127.0.0.1", "")
_CLIENT = bytes((0, 0))  # draws the first of them


@dataclass(frozen=True)
class Target:
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    words: tuple[str, ...] = ()  # for the fuzzer's dictionary


# --- requests ----------------------------------------------------------------------------------------------


def unary(data: bytes) -> None:
    """Up to sixteen calls of any unary method, and time between them."""
    source = Source(data)
    live = Live(client=source.text(_CLIENTS))
    for _ in range(_STEPS_MAX):
        if source.is_empty:
            break
        choice = source.below(len(NAMES) + 6)
        if choice < len(NAMES):
            live.call(CALLS[NAMES[choice]], source)
        else:
            live.step(source)
    live.finish(thorough=len(data) % 4 == 0)


def _unary_seeds() -> Iterator[bytes]:
    steps = len(NAMES)
    for number, name in enumerate(NAMES):
        examples = CALLS[name].drawn_from(Live().ack_ids)
        for example, request in enumerate(examples):
            # An example as it is, time, delivery, and the same again.
            call = bytes((number, 7, example, 0))
            yield _CLIENT + call
            yield _CLIENT + call + bytes((steps, 0, 2)) + call
            # The example as raw bytes.
            raw = request.SerializeToString()[:250]
            yield _CLIENT + bytes((number, 0, len(raw))) + raw
    # Received, nacked and waited for, until the dead letter topic has it.
    receive, nack = (bytes((NAMES.index(name), 7, 0, 0)) for name in ("Pull", "ModifyAckDeadline"))
    wait = bytes((steps, 0, 4))
    yield _CLIENT + nack + (wait + receive + nack) * 5
    yield _CLIENT + (wait + receive) * 8


def stream(data: bytes) -> None:
    """A StreamingPull: its first request, later ones, and what else happens to its subscription."""
    source = Source(data)
    live = Live(client=source.text(_CLIENTS))
    consumer = live.open_stream(source)
    for _ in range(_STEPS_MAX):
        if source.is_empty:
            break
        match source.below(8):
            case 0:
                live.step(source)
            case 1:
                live.call(CALLS[source.one(NAMES)], source)
            case 2 if consumer is None or consumer not in live.streams:
                consumer = live.open_stream(source)
            case _ if consumer in live.streams:
                live.later(consumer, source)
            case _:
                live.step(source)
    live.finish(thorough=len(data) % 4 == 0)


def _stream_seeds() -> Iterator[bytes]:
    for subscription in range(3):
        # Way 7: an example, with no field set beyond it.
        first = _CLIENT + bytes((subscription, 7, 0, 0))
        yield first
        for example in range(4):
            later = bytes((4, 7, example, 0))
            yield first + later
            yield first + bytes((0, 2)) + later + bytes((0, 0, 3)) + later
            yield first + (bytes((0, 2)) + later + bytes((0, 0, 4))) * 4
        for name in ("UpdateSubscription", "DeleteSubscription", "DetachSubscription", "Seek"):
            yield first + bytes((1, NAMES.index(name), 7, 0, 0)) + bytes((4, 7, 0, 0))
    raw = pb.StreamingPullRequest(
        subscription=f"{PROJECT}/subscriptions/plain", stream_ack_deadline_seconds=10
    )
    text = raw.SerializeToString()
    yield _CLIENT + bytes((0, 0, len(text))) + text


# --- filters -----------------------------------------------------------------------------------------------

_FILTERS = (
    "attributes:a",
    'attributes.a = "b" AND attributes.b != ""',
    'NOT (hasPrefix(attributes.a, "b") OR -attributes:"b")',
    'attributes."a b"="\\x41\\101\\u0041\\U00000041\\n"',
    'NOT attributes:a AND (attributes.a="b" OR (attributes.b="a" AND attributes:AND))',
    "((((((((((attributes:a))))))))))",
)
_PIECES = (
    *("attributes", ":", ".", "=", "!=", " AND ", " OR ", "NOT ", "-", "(", ")", "hasPrefix(", ",", '"', " "),
    *("a", "b", "AND", '"a"', '""', "\\x41", "\\u0041", "\\", "\n", "é", "attributes:a", 'attributes.a="b"'),
)
_TEXTS = ("", "a", "b", "AND", "A", "é", "ab", "x" * 1024)


def filter_text(data: bytes) -> None:
    """A filter is refused with a place inside of it, or means for every message what its tree says."""
    source = Source(data)
    attributes = {source.one(_TEXTS): source.one(_TEXTS) for _ in range(source.below(4))}
    if source.below(2):
        text = source.rest().decode(errors="replace")
    else:
        text = ""
        while not source.is_empty:
            text += source.text(_PIECES)
    try:
        tree = filters.parse_filter(text)
    except InvalidArgument as error:
        judge_refusal(error, f"filter {text!r}")
        return
    assert len(text.encode()) <= limits.FILTER_BYTES_MAX, "a filter has its limit"
    matches = compile_filter(tree)
    message = pb.PubsubMessage(attributes=attributes)
    expected = _means(tree, attributes)
    assert matches(attributes) is expected, f"{text!r} on {attributes}"
    assert matches(message.attributes) is expected, f"{text!r} on the map of {attributes}"
    assert dict(message.attributes) == attributes, "looking at a message leaves it alone"


def _means(tree: filters.Filter, attributes: dict[str, str]) -> bool:
    match tree:
        case filters.Presence(key):
            return key in attributes
        case filters.Equals(key, value):
            return attributes.get(key) == value
        case filters.NotEquals(key, value):
            return attributes.get(key) != value
        case filters.HasPrefix(key, prefix):
            return key in attributes and attributes[key].startswith(prefix)
        case filters.Not(operand):
            return not _means(operand, attributes)
        case filters.And(operands):
            return all([_means(operand, attributes) for operand in operands])
        case filters.Or(operands):
            return any([_means(operand, attributes) for operand in operands])


def _filter_seeds() -> Iterator[bytes]:
    for text in _FILTERS:
        yield bytes((1, 1, 2, 1)) + text.encode()
        yield bytes((0, 1)) + text.encode()
    for piece in range(len(_PIECES)):
        yield bytes((0, 0, 0, 0, 0, 0, 1, 0, piece, 0, 15))


# --- names -------------------------------------------------------------------------------------------------

_KINDS = {
    "topics": names.check_topic,
    "subscriptions": names.check_subscription,
    "snapshots": names.check_snapshot,
    "schemas": names.check_schema,
}
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_ID_CHARS = _LETTERS | frozenset("0123456789-_.~+%")
_NAME_PIECES = (
    "projects/",
    "p",
    "/",
    *[f"/{kind}/" for kind in _KINDS],
    "abc",
    "goog",
    "a" * 250,
    "~+%",
    "\n",
    "é",
)


def name(data: bytes) -> None:
    """A name is accepted just when a reading of the rules by hand says so, and taken apart rightly."""
    source = Source(data)
    text = ""
    if source.below(2):
        text = source.rest().decode(errors="replace")
    while not source.is_empty:
        text += source.text(_NAME_PIECES)
    _accepts(names.check_project, text, _is_project(text))
    for kind, check in _KINDS.items():
        if _accepts(check, text, _is_name(text, kind)):
            assert f"{names.project_of(text)}/{kind}/{names.leaf(text)}" == text


def _accepts(check: Callable[[str], None], text: str, expected: bool) -> bool:
    try:
        check(text)
    except InvalidArgument as error:
        judge_refusal(error, f"name {text!r}")
        assert not expected, f"{check.__name__} refuses {text!r}"
        return False
    assert expected, f"{check.__name__} accepts {text!r}"
    return True


def _is_project(text: str) -> bool:
    first, slash, project = text.partition("/")
    return first == "projects" and bool(slash) and bool(project) and "/" not in project


def _is_name(text: str, kind: str) -> bool:
    parts = text.split("/")
    if len(parts) != 4 or parts[0] != "projects" or not parts[1] or parts[2] != kind:
        return False
    last = parts[3]
    return (
        limits.RESOURCE_ID_CHARS_MIN <= len(last) <= limits.RESOURCE_ID_CHARS_MAX
        and last[0] in _LETTERS
        and _ID_CHARS.issuperset(last)
        and not last.startswith("goog")
    )


def _name_seeds() -> Iterator[bytes]:
    for kind in _KINDS:
        for last in ("abc", "goog-x", "a" * 255, "a~+%._-9", "ab", "", "abc\n"):
            yield b"\x01" + f"projects/p/{kind}/{last}".encode()
    for text in (
        "projects/p",
        "projects/",
        "projects//topics/abc",
        "projects/é/topics/abc",
        "_deleted-topic_",
    ):
        yield b"\x01" + text.encode()
    yield bytes((0, 0, 0, 0, 1, 0, 3, 0, 7))


# --- ack ids -----------------------------------------------------------------------------------------------

_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@cache
def _genuine() -> tuple[AckIds, dict[str, AckToken]]:
    """The ids of a server, short and long, at the edges of what each form holds."""
    ack_ids = AckIds(SECRET)
    tokens = [
        AckToken(1, 1, 1, 1, 1_800_000_000_000_000, 1, 1),
        AckToken(2**24 - 1, 255, 255, 2**40 - 1, 2**55, 2**16 - 1, 2**16 - 1),
        AckToken(2**24, 256, 256, 2**40, 2**60, 2**16, 2**16),
        AckToken(7, 3, 0, 12, 0, 0, 3),
    ]
    return ack_ids, dict(zip(ack_ids.make(tokens), tokens, strict=True))


def ack_id(data: bytes) -> None:
    """Only what the server made is read, and as what it was made of; everything else is nobody's."""
    ack_ids, genuine = _genuine()
    source = Source(data)
    match source.below(4):
        case 0:
            text = source.rest().decode(errors="replace")
        case 1:
            text = base64.urlsafe_b64encode(source.rest()).decode()
        case 2:
            text = source.text(list(genuine))
        case _:
            # The right characters at the right length, with one or two of them others.
            text = source.one(list(genuine))
            for _ in range(1 + source.below(2)):
                at = source.below(len(text))
                text = text[:at] + source.one(_BASE64) + text[at + 1 :]
    token = ack_ids.read(text)
    assert token == genuine.get(text), f"{text!r} is read as {token}"
    assert AckIds(b"another secret of a server").read(text) is None, f"{text!r} is read by another server"


def _ack_id_seeds() -> Iterator[bytes]:
    _, genuine = _genuine()
    for number, text in enumerate(genuine):
        yield b"\x00" + text.encode()
        yield bytes((2, 0, number))
        yield bytes((3, number, 0, 5, 9))
        yield b"\x01" + base64.urlsafe_b64decode(text)
    yield b"\x00" + b"=" * 40


# --- page tokens -------------------------------------------------------------------------------------------


@cache
def _lists() -> tuple[list[str], dict[str, tuple[str, str]]]:
    """The names of a list, and every token of two such lists: where it belongs, and where it begins."""
    listed = [f"{PROJECT}/topics/{leaf}" for leaf in ("abc", "abd", "b-b", "é", "zzz")]
    tokens = {}
    for context in ("ListTopics projects/p", "ListTopics projects/q"):
        for size in range(1, len(listed)):
            chosen, token = paging.page(listed, context, size, "", SECRET)
            tokens[token] = context, chosen[-1]
    return listed, tokens


def page_token(data: bytes) -> None:
    """A token that this server did not make for this list is refused; a genuine one goes on behind it."""
    listed, tokens = _lists()
    source = Source(data)
    size = source.number(-(2**31), 2**31 - 1)
    match source.below(3):
        case 0:
            token = source.rest().decode(errors="replace")
        case 1:
            token = base64.urlsafe_b64encode(source.rest()).rstrip(b"=").decode()
        case _:
            token = source.text(list(tokens))
    context = "ListTopics projects/p"
    genuine, boundary = tokens.get(token, ("", ""))
    try:
        chosen, following = paging.page(listed, context, size, token, SECRET)
    except InvalidArgument as error:
        judge_refusal(error, f"page {size} {token!r}")
        assert not 0 <= size <= limits.PAGE_SIZE_MAX or (token and genuine != context), (
            f"{token!r} is refused"
        )
        return
    assert 0 <= size <= limits.PAGE_SIZE_MAX and (not token or genuine == context), f"{token!r} is accepted"
    expected = [one for one in listed if one > boundary]
    assert chosen == expected[: size or None] and bool(following) == (len(chosen) < len(expected))


def _page_token_seeds() -> Iterator[bytes]:
    _, tokens = _lists()
    for number, token in enumerate(tokens):
        yield bytes((10, 0)) + token.encode()
        yield bytes((9, 2, 0, number))
        yield bytes((10, 1)) + base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    yield bytes((10, 0))


# --- storage -----------------------------------------------------------------------------------------------


class _Damaged(FakeStore):
    """A store that gives back something else than it was given."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__()
        self._loaded = loaded

    async def load(self) -> Loaded:
        return self._loaded


@cache
def _loaded() -> Loaded:
    """Rows with something of everything, the operation log as a checkpoint and as blobs upon it."""
    live = Live()
    for call in (b"", b"\x07\x01", b"\x07\x02"):
        for name in ("Publish", "Pull", "ModifyAckDeadline", "Seek", "UpdateTopic"):
            live.call(CALLS[name], Source(call))
            live.world.turn()
    return live.world.store.loaded()


def storage(data: bytes) -> None:
    """Rows that something damaged stop the start with one error, and no other, or are read."""
    source = Source(data)
    loaded = deepcopy(_loaded())
    tables: tuple[list[list[object]], ...] = tuple(
        [list(row) for row in rows]
        for rows in (loaded.topics, loaded.subscriptions, loaded.snapshots, loaded.endings)
    )
    oplog = list(loaded.oplog)
    for _ in range(1 + source.below(3)):
        where = source.below(8)
        if where < len(tables):
            rows = tables[where]
            match source.below(4):
                case 0 if rows:
                    del rows[source.below(len(rows))]
                case 1 if rows:
                    rows.append(list(source.one(rows)))
                case _ if rows:
                    row = source.one(rows)
                    at = source.below(len(row))
                    row[at] = _other(row[at], source)
        elif oplog:
            at = source.below(len(oplog))
            oplog[at] = _changed(oplog[at], source)
    topics, subscriptions, snapshots, endings = ([tuple(row) for row in rows] for rows in tables)
    asyncio.run(_start(loaded._replace(
        topics=topics, subscriptions=subscriptions, snapshots=snapshots, endings=endings, oplog=oplog
    )))  # fmt: skip  # three calls in one, closed as one


async def _start(loaded: Loaded) -> None:
    engine = Engine(_Damaged(loaded), journal=True)
    with contextlib.suppress(Damaged):
        await engine.start("fuzz")
        engine.loop_task.cancel()


def _other(value: object, source: Source) -> object:
    if isinstance(value, bytes):
        return _changed(value, source)
    if isinstance(value, str):
        return source.text([value])
    return source.number(-(2**63), 2**63 - 1)


def _changed(data: bytes, source: Source) -> bytes:
    at = source.number(0, 2**31 - 1) % (len(data) + 1)
    match source.below(5):
        case 0:
            return data[:at]
        case 1:
            return source.blob()
        case 2:
            return data[:at] + source.take(4) + data[at + 4 :]
        case 3:
            return data[:at] + source.blob() + data[at:]
        case _:
            return data[:at] + data[at + 1 + source.byte() :]


def _storage_seeds() -> Iterator[bytes]:
    for where in range(8):
        for kind in range(5):
            yield bytes((0, where, kind, 40, kind, 1, 2, 3, 4))


# --- schemas -----------------------------------------------------------------------------------------------

_AVRO_TYPES = (
    '"string"',
    '["null","int",{"type":"enum","name":"E","symbols":["A","B"]}]',
    '{"type":"array","items":["null","long","bytes","double"]}',
    '{"type":"map","values":{"type":"fixed","name":"x.F","size":2}}',
    '{"type":"record","name":"R","fields":[{"name":"next","type":["null","R"],"default":null},'
    '{"name":"n","type":{"type":"array","items":"null"}},{"name":"f","type":"float","default":1}]}',
)
_JSON_DATA = (
    '"x"',
    "null",
    '{"int":3}',
    "[null]",
    '{"a":"xx"}',
    '{"next":null,"n":[null],"f":1}',
    '{"a":[]}',
)
_ENCODINGS = (pb.JSON, pb.BINARY)


def schema(data: bytes) -> None:
    """A definition is refused in words, or judges any data and goes together with itself."""
    source = Source(data)
    if source.below(2):
        sent = pb.Schema(type=pb.Schema.AVRO, definition=source.text(_AVRO_TYPES))
    else:
        descriptors = _descriptors() if source.below(2) else _changed(_descriptors(), source)
        whole = pb.CompiledProtoSchema(root_message="fuzz.Rec", compiled_bytes=descriptors)
        sent = pb.Schema(type=pb.Schema.PROTOCOL_BUFFER, compiled_proto_schema=whole)
    try:
        check_definition(sent)
        ready = compiled(sent, b"")
    except InvalidArgument as error:
        judge_refusal(error, "schema")
        return
    ready.check_compatible(ready)
    for encoding in _ENCODINGS:
        message = source.text(_JSON_DATA).encode() if source.below(2) else source.blob()
        try:
            ready.check(encoding)(message)
        except Mismatch as mismatch:
            error = refusal(sent.type, encoding, mismatch, "projects/p/schemas/abc", "12345678")
            judge_refusal(error, "schema")


@cache
def _descriptors() -> bytes:
    """Of a message with a field of every kind, some of them messages."""
    file = FileDescriptorProto(name="fuzz.proto", package="fuzz", syntax="proto3")
    rec = file.message_type.add(name="Rec")
    for number in (*range(1, 10), *range(12, 19)):
        label = 3 if number % 2 else 1
        kind = rec.field.add(name=f"f{number}", number=number, type=number, label=label)
        if number == 14:
            kind.type_name = ".fuzz.E"
    rec.field.add(name="in", number=20, type=11, label=1, type_name=".fuzz.Rec")
    file.enum_type.add(name="E").value.add(name="A", number=0)
    return FileDescriptorSet(file=[file]).SerializeToString()


def _schema_seeds() -> Iterator[bytes]:
    for number in range(len(_AVRO_TYPES)):
        for value in range(len(_JSON_DATA)):
            yield bytes((1, 0, number, 1, 0, value, 0, 2, 2, 0))
    for changes in range(12):
        yield bytes((0, 1, 1, 0, changes % 7, 0, 3, 8, 1, 9))
        yield bytes((0, 0, changes, 40 + changes, changes % 5, 1, 2, 3, 4))


TARGETS = {
    "stream": Target(stream, _stream_seeds, tuple(NAMES)),
    "unary": Target(unary, _unary_seeds, tuple(NAMES)),
    "filters": Target(filter_text, _filter_seeds, _PIECES),
    "names": Target(name, _name_seeds, _NAME_PIECES),
    "ack-ids": Target(ack_id, _ack_id_seeds),
    "page-tokens": Target(page_token, _page_token_seeds),
    "storage": Target(storage, _storage_seeds),
    "schemas": Target(schema, _schema_seeds, (*_AVRO_TYPES, *_JSON_DATA)),
}
