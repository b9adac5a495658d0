"""Answers of Kafka's brokers in each version: they are read, and written again mean the same, or refused as malformed.

An input is the number of an API's version in two bytes and the frame of an answer, without its length.
"""

from __future__ import annotations

import random as randoms
import struct
from typing import Any

from penstock.wire.errors import MalformedResponse, UnsupportedVersion
from penstock.wire.protocol.frames import API_VERSIONS, APIS, Api, encode_response, response
from penstock.wire.protocol.message_schema import Field, fields_of

from .mutate import mutated, noise
from .runner import Decoder, Difference

ANSWERS = [(api, version) for api in APIS.values() for version in range(api.versions[0], api.versions[1] + 1)]
_WIDTHS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def _value(random: randoms.Random, kind: str) -> Any:
    if kind in _WIDTHS:
        return random.choice((0, 1, -1, (1 << _WIDTHS[kind] - 1) - 1, -(1 << _WIDTHS[kind] - 1)))
    if kind in ("uint16", "uint32"):
        return random.choice((0, 1, (1 << int(kind[4:])) - 1))
    if kind == "bool":
        return random.random() < 0.5
    if kind == "float64":
        return random.random()
    if kind == "uuid":
        return random.randbytes(16)
    return random.choice(("", "a", "ü", "name" * 10)) if kind == "string" else noise(random, 30)


def _drawn(random: randoms.Random, field: Field, version: int) -> Any:
    if field.may_be_null(version) and random.random() < 0.2:
        return None

    def one() -> Any:
        return _body(random, field.fields, version) if field.fields else _value(random, field.kind)

    return [one() for _ in range(random.choice((0, 1, 1, 2)))] if field.array else one()


def _body(random: randoms.Random, fields: tuple[Field, ...], version: int) -> dict[str, Any]:
    return {field.name: _drawn(random, field, version) for field in fields if field.is_in(version)}


def _draw(random: randoms.Random) -> bytes:
    number = random.randrange(len(ANSWERS))
    api, version = ANSWERS[number]
    body = _body(random, fields_of(api, "response"), version)
    frame = b"".join(map(bytes, encode_response(api, version, 7, body)))[4:]
    if random.random() < 0.7:
        frame = mutated(random, frame)
    elif random.random() < 0.1:
        frame = noise(random, 200)
    return number.to_bytes(2, "big") + frame


def _same(one: Any, other: Any) -> bool:
    """Whether they are equal; views are their bytes, and no number is none."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float):
        return struct.pack(">d", one) == struct.pack(">d", other)
    return bool(one == other)


def _carried(message: Any, fields: tuple[Field, ...], version: int) -> Any:
    """The message without what this version does not carry: readers give it defaults, writers refuse it."""
    if message is None:
        return None
    if isinstance(message, list):
        return [_carried(one, fields, version) for one in message]
    return {
        field.name: _carried(message[field.name], field.fields, version) if field.fields else message[field.name]
        for field in fields
        if field.is_in(version)
    }


def _again(api: Api, version: int, message: dict[str, Any]) -> dict[str, Any]:
    body = _carried(message, fields_of(api, "response"), version)
    return response(api, version, b"".join(map(bytes, encode_response(api, version, 7, body)))[4:])


def _check(data: bytes) -> bool:
    api, version = ANSWERS[int.from_bytes(data[:2], "big") % len(ANSWERS)]
    try:
        message = response(api, version, data[2:])
    except MalformedResponse:
        return False
    # A broker that does not know this version of ApiVersions answers in another one, perhaps another broker's.
    if api is API_VERSIONS and message["error_code"] == UnsupportedVersion.code:
        return True
    again = _again(api, version, message)
    if not _same(message, again):
        raise Difference(f"{api.name} {version}: {message} and {again}")
    return True


DECODER = Decoder(name="wire_answers", draw=_draw, check=_check)
