"""Protobuf records after the id of their schema and message indexes, compared with Google's library alone.

An input is a value from Kafka. The library decodes on both sides; compared are the frame, the message indexes, and the
conversion of each kind of field.
"""

from __future__ import annotations

import random as randoms
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from pyspark.sql import types as st

from penstock.codec.decode_protobuf import REASON, ProtobufDecoder, columns_of, compiled, decode_values

from .mutate import mutated, noise
from .runner import Decoder, Difference

TEXT = """syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "google/type/date.proto";
enum Kind { A = 0; B = 3; }
message Event {
  int32 id = 1; string name = 2; repeated int64 counts = 3; map<string, double> prices = 4; Inner inner = 5;
  repeated Inner many = 6; bytes raw = 7; Kind kind = 8; optional bool flag = 9; google.protobuf.Timestamp at = 10;
  uint64 big = 11; google.type.Date day = 12; oneof one { sint32 left = 13; fixed32 right = 14; } float share = 15;
  message Inner { string text = 1; Deep deep = 2; } message Deep { repeated string words = 1; }
}
message Other { string name = 2; Other next = 3; message Nested { sint64 id = 1; } }
"""
NUMBER = 7
FILES = compiled(TEXT, "the fuzz test")
SCHEMA = columns_of(FILES, None, "the fuzz test")
START = datetime(1970, 1, 1, tzinfo=UTC)


def _classes() -> dict[tuple[int, ...], Any]:
    """Message classes by their message indexes."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(FILES).file:
        pool.Add(file)
    names = {(0,): "Event", (0, 1): "Event.Inner", (0, 2): "Event.Deep", (1,): "Other", (1, 0): "Other.Nested"}
    made = {
        path: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))
        for path, name in names.items()
    }
    # The entry of the map is a nested message too, the first one.
    nested = [one.name for one in made[0,].DESCRIPTOR.nested_types]
    by_path = {(0, number): made[0, 1 + (name == "Deep")] for number, name in enumerate(nested) if "Entry" not in name}
    entry = next(number for number, name in enumerate(nested) if "Entry" in name)
    by_path[0, entry] = message_factory.GetMessageClass(made[0,].DESCRIPTOR.nested_types[entry])
    return {path: kind for path, kind in made.items() if path[0] == 1 or len(path) == 1} | by_path


CLASSES = _classes()
ONE = ProtobufDecoder(SCHEMA, {NUMBER: FILES})


def _event(random: randoms.Random) -> bytes:
    event = CLASSES[0,]()
    if random.random() < 0.7:
        event.id = random.choice((0, 1, -1, 2**31 - 1, -(2**31)))
    event.name = random.choice(("", "a", "ü" * 5))
    event.counts.extend(random.choice((0, 1, -1, 2**63 - 1)) for _ in range(random.randrange(4)))
    for n in range(random.randrange(3)):
        event.prices[f"k{n}"] = random.random()
    if random.random() < 0.5:
        event.inner.text = "x"
        event.inner.deep.words.extend(["a", "b"])
    for _ in range(random.randrange(3)):
        event.many.add(text=random.choice(("", "y")))
    event.raw, event.kind, event.big = noise(random, 10), random.choice((0, 3, 9)), random.choice((0, 2**64 - 1))
    if random.random() < 0.5:
        event.flag = random.random() < 0.5
    if random.random() < 0.5:
        event.at.seconds, event.at.nanos = random.choice((0, -1, 10**9, 2**62)), random.choice((0, 999_999_999, -1))
    if random.random() < 0.3:
        event.day.year, event.day.month, event.day.day = random.choice(((2026, 1, 31), (2026, 2, 30), (0, 1, 1)))
    if random.random() < 0.5:
        event.left = -5
    made: bytes = event.SerializeToString()
    return made


def _draw(random: randoms.Random) -> bytes:
    path = random.choice((b"\0", b"\0", b"\0", b"\2\0", b"\2\2", b"\4\2\0", b"\4\0\2", b"\2\1", b"\x80" * 12, b"\6"))
    frame = bytes([0]) + random.choice((NUMBER, NUMBER, NUMBER, NUMBER, 8)).to_bytes(4, "big")
    value = frame + path + _event(random)
    return mutated(random, value) if random.random() < 0.6 else value


def _path(data: bytes) -> tuple[tuple[int, ...], bytes] | None:
    """The message indexes and the bytes after them, without the decoder's limit on their number."""
    numbers: list[int] = []
    while not numbers or len(numbers) <= numbers[0]:
        place = next((n for n, byte in enumerate(data[:10]) if byte < 128), None)
        if place is None:
            return None
        raw = sum((byte & 127) << 7 * n for n, byte in enumerate(data[: place + 1]))
        number = raw // 2 if raw % 2 == 0 else -(raw + 1) // 2
        if not 0 <= number < 2**31:
            return None
        numbers.append(number)
        data = data[place + 1 :]
    return tuple(numbers[1:]) or (0,), data


def _cell(kind: st.DataType, message: Any, name: str) -> Any:
    """The field of a message as a value of the column's type; raises ValueError if the type cannot hold it."""
    field = message.DESCRIPTOR.fields_by_name.get(name)
    if field is None or (not field.is_repeated and field.has_presence and not message.HasField(name)):
        return None
    value = getattr(message, name)
    if isinstance(kind, st.MapType):
        return [(key, float(item)) for key, item in value.items()]
    if isinstance(kind, st.ArrayType):
        return [_single(kind.elementType, item, field) for item in value]
    return _single(kind, value, field)


def _single(kind: st.DataType, value: Any, field: Any) -> Any:
    if isinstance(kind, st.StructType):
        return {one.name: _cell(one.dataType, value, one.name) for one in kind}
    if isinstance(kind, st.TimestampType):
        return START + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if isinstance(kind, st.DateType):
        return date(value.year, value.month, value.day)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value


def _expected(data: bytes) -> dict[str, Any] | None:
    if len(data) < 5 or data[0] or int.from_bytes(data[1:5], "big") != NUMBER:
        return None
    found = _path(data[5:])
    if found is None or found[0] not in CLASSES:
        return None
    try:
        message = CLASSES[found[0]].FromString(found[1])
        return {field.name: _cell(field.dataType, message, field.name) for field in SCHEMA}
    except (DecodeError, OverflowError, ValueError):
        return None


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and all(_same(ours[name], value) for name, value in theirs.items())
    if isinstance(theirs, list | tuple):
        return isinstance(ours, list | tuple) and len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return bool(ours == theirs or (ours != ours and theirs != theirs))


def _check(data: bytes) -> bool:
    made = decode_values(ONE, pa.array([data], pa.binary()))
    made.validate(full=True)
    (row,) = made.to_pylist()
    reason = row.pop(REASON)
    expected = _expected(data)
    if expected is None:
        if reason is None:
            raise Difference(f"read as {row}")
        return False
    # A field of the same name may have another type in another message: its column then has its own reason.
    wrong = [name for name, value in expected.items() if value is not None and row[name] is None]
    if (reason is None) != (not wrong) or any(
        not _same(row[name], expected[name]) for name in row if name not in wrong
    ):
        raise Difference(f"{row} ({reason}) and {expected}")
    return True


DECODER = Decoder(name="protobuf", draw=_draw, check=_check)
