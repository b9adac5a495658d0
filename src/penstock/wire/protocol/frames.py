"""Kafka's requests and responses as frames of bytes: encodes what a connection sends, decodes its answers.

A message is a dict with Kafka's names in snake case. Records are separate chunks, which go to the socket without a
copy; in responses they are views of the received frame. Frames and headers follow the protocol guide, section
"Protocol": a length of 4 bytes, then a header that identifies the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct, error as StructError
from typing import Any

from penstock.wire.errors import MalformedResponse, UnsupportedBroker, UnsupportedVersion
from penstock.wire.protocol import messages, messages_admin, messages_transaction
from penstock.wire.protocol.message_codec import Message as Message, decoder, encoder
from penstock.wire.protocol.message_schema import Api as Api, Direction, Versions

# The APIs are public here by their names, such as `frames.PRODUCE`.
from penstock.wire.protocol.messages import *  # noqa: F403
from penstock.wire.protocol.messages import API_VERSIONS
from penstock.wire.protocol.messages_admin import *  # noqa: F403
from penstock.wire.protocol.messages_transaction import *  # noqa: F403
from penstock.wire.protocol.types import (
    BadBytes,
    Buffer,
    Cuts,
    end_of,
    joined,
    null_or,
    read_int16,
    read_text,
    read_unsigned,
    write_int16,
)

APIS = {
    api.key: api
    for table in (messages, messages_admin, messages_transaction)
    for api in vars(table).values()
    if isinstance(api, Api)
}

_LENGTH = Struct(">i")
_REQUEST = Struct(">hhi")
_TOO_NEW = UnsupportedVersion.code.to_bytes(2, "big")


def request(
    api: Api, version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]
) -> list[Buffer]:
    """The frame of a request in chunks, its length first; fields that are not in the body have their defaults.

    Raises `UnsupportedVersion` if the body sets a field that this version cannot carry, and ValueError for any other
    value that does not fit the message.
    """
    out = bytearray(4)
    out += _REQUEST.pack(api.key, version, correlation_id)
    # The client id has a 16-bit length in the flexible header too, for brokers that do not support that (KIP-482).
    name = None if client_id is None else client_id.encode()
    write_int16(out, -1 if name is None else len(name))
    out += name or b""
    if api.is_flexible(version):
        out.append(0)
    return _framed(api, "request", version, out, body)


def encode_response(api: Api, version: int, correlation_id: int, body: Mapping[str, Any]) -> list[Buffer]:
    """The frame of a response in chunks, its length first, as a broker sends it."""
    out = bytearray(4) + _LENGTH.pack(correlation_id)
    if _has_tags(api, version):
        out.append(0)
    return _framed(api, "response", version, out, body)


def correlation_id(frame: Buffer) -> int:
    """The number of the request that this response answers."""
    try:
        number: int = _LENGTH.unpack_from(frame)[0]
    except StructError:
        raise MalformedResponse(f"a frame of {len(frame)} bytes has no correlation id") from None
    return number


def response(api: Api, version: int, frame: Buffer) -> Message:
    """The message in a response's frame without its length; records are views of the frame."""
    data = memoryview(frame)
    # A broker that does not support this version of ApiVersions answers in version 0 (KIP-511).
    refused = api is API_VERSIONS and data[4:6] == _TOO_NEW
    version = 0 if refused else version
    try:
        start = _skip_tags(data, 4) if _has_tags(api, version) else 4
        return _body(api, "response", version, data, start)
    except BadBytes as error:
        if refused:  # librdkafka's mock broker refuses in the form of the version that it does not support
            return {"error_code": UnsupportedVersion.code, "api_keys": []}
        raise MalformedResponse(f"{api.name} response, version {version}, {error}") from None


def decode_request(frame: Buffer) -> tuple[Api, int, int, str | None, Message]:
    """The API, version, correlation id, client id and message of a request's frame, without its length."""
    data = memoryview(frame)
    title = "request"
    try:
        end_of(data, 0, 10)
        key, version, number = _REQUEST.unpack_from(data)
        api = APIS.get(key)
        if api is None or not api.versions[0] <= version <= api.versions[1]:
            raise BadBytes(0, f"unknown request: key {key}, version {version}")
        title = f"{api.name} request, version {version}"
        size, start = read_int16(data, 8)
        client, start = (None, start) if null_or(size, 8) < 0 else read_text(data, start, size)
        start = _skip_tags(data, start) if api.is_flexible(version) else start
        return api, version, number, client, _body(api, "request", version, data, start)
    except BadBytes as error:
        raise MalformedResponse(f"{title}, {error}") from None


def common_version(api: Api, broker: Mapping[int, Versions], broker_name: str, *, at_most: int | None = None) -> int:
    """The highest version of an API that both sides support, from the broker's answer to ApiVersions.

    `at_most` is for requests whose later versions are not for every client: AddPartitionsToTxn from version 4 is for
    brokers, and Produce from version 12 in a transaction needs a cluster with transaction.version 2 (KIP-890). Raises
    `UnsupportedBroker` if there is no common version.
    """
    lowest, highest = api.versions[0], api.versions[1] if at_most is None else min(at_most, api.versions[1])
    if api.key not in broker:
        ours = f"of which this client supports versions {lowest} to {highest}"
        raise UnsupportedBroker(f"broker {broker_name} does not offer {api.name}, {ours}")
    low, high = broker[api.key]
    version = min(high, highest)
    if version < max(low, lowest):
        ours = f"this client {lowest} to {highest}"
        raise UnsupportedBroker(f"broker {broker_name} supports {api.name} in versions {low} to {high}, {ours}")
    return version


def _framed(api: Api, direction: Direction, version: int, out: bytearray, body: Mapping[str, Any]) -> list[Buffer]:
    """The header in `out` and the body after it, with the length of both at the front."""
    if not api.versions[0] <= version <= api.versions[1]:
        raise ValueError(f"{api.name} is supported in versions {api.versions[0]} to {api.versions[1]}, not {version}")
    cuts: Cuts = []
    try:
        encoder(api, direction, version)(body, out, cuts)
    except (StructError, TypeError, AttributeError) as error:
        raise ValueError(f"{api.name} {direction}, version {version}: {error}") from error
    chunks = joined(out, cuts)
    _LENGTH.pack_into(out, 0, sum(memoryview(chunk).nbytes for chunk in chunks) - 4)
    return chunks


def _body(api: Api, direction: Direction, version: int, data: memoryview, start: int) -> Message:
    message, end = decoder(api, direction, version)(data, start)
    # librdkafka's mock brokers write the empty tagged fields at the end of a message twice.
    if end != len(data) and not (api.is_flexible(version) and direction == "response" and bytes(data[end:]) == b"\0"):
        raise BadBytes(end, f"{len(data) - end} bytes are left over")
    return message


def _has_tags(api: Api, version: int) -> bool:
    """Whether a response's header has tagged fields: never in ApiVersions, which is read before versions are agreed."""
    return api.is_flexible(version) and api is not API_VERSIONS


def _skip_tags(data: memoryview, position: int) -> int:
    """The position after a header's tagged fields; Kafka defines none."""
    count, position = read_unsigned(data, position)
    for _ in range(count):
        _, position = read_unsigned(data, position)
        size, position = read_unsigned(data, position)
        position = end_of(data, position, size)
    return position
