"""Files and rows of Spark's state stores, written by the rules of their formats in plain Python."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st

from penstock.state.change_files import DELETE, Change
from penstock.state.unsafe_rows import FIXED


def text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(2, "big") + data


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def untyped(changes: Sequence[Change]) -> bytes:
    body = (sized(key) + (struct.pack(">i", -1) if kind == DELETE else sized(value)) for kind, key, value in changes)
    return b"".join(body) + struct.pack(">i", -1)


def typed(changes: Sequence[Change]) -> bytes:
    body = (bytes([kind]) + untyped([(kind, key, value)])[:-4] for kind, key, value in changes)
    return b"".join(body) + b"\0"


def block(data: bytes, packed: bytes, method: int) -> bytes:
    return struct.pack("<8sBiiI", b"LZ4Block", method | 6, len(packed), len(data), 0) + packed


def lz4(data: bytes, size: int = 1 << 10) -> bytes:
    """Blocks as lz4-java writes them: those that do not get smaller stay as they are."""
    blocks = []
    for at in range(0, len(data), size):
        part = data[at : at + size]
        packed = pa.compress(part, "lz4_raw", asbytes=True)
        blocks.append(block(part, part, 0x10) if len(packed) >= len(part) else block(part, packed, 0x20))
    return b"".join(blocks) + block(b"", b"", 0x10)


def placed(parts: list[tuple[st.DataType, Any]], start: int, width: int | None) -> bytes:
    """Bits of nulls, then values or their places, then the values that vary in size."""
    bits = sum(1 << place for place, (_, value) in enumerate(parts) if value is None)
    head = bits.to_bytes(-(-len(parts) // 64) * 8, "little")
    words, rest = [], b""
    size = width or 8
    begin = start + len(head) + -(-size * len(parts) // 8) * 8
    for of, value in parts:
        data = b"" if value is None else encoded(of, value)
        if value is None or isinstance(of, tuple(FIXED)) or (isinstance(of, st.DecimalType) and of.precision <= 18):
            words.append(data.ljust(size, b"\0"))
        else:
            words.append(struct.pack("<II", len(data), begin + len(rest)))
            rest += data.ljust(-(-len(data) // 8) * 8, b"\0")
    body = b"".join(words)
    return head + body.ljust(-(-len(body) // 8) * 8, b"\0") + rest


def encoded(kind: st.DataType, value: Any) -> bytes:
    if isinstance(kind, st.StructType):
        return placed([(one.dataType, of) for one, of in zip(kind.fields, value, strict=True)], 0, None)
    if isinstance(kind, st.ArrayType):
        fixed = FIXED.get(type(kind.elementType))
        head = struct.pack("<q", len(value))
        return head + placed([(kind.elementType, of) for of in value], 8, fixed.size if fixed else 8)
    if isinstance(kind, st.MapType):
        keys = encoded(st.ArrayType(kind.keyType), [key for key, _ in value])
        return struct.pack("<q", len(keys)) + keys + encoded(st.ArrayType(kind.valueType), [of for _, of in value])
    if isinstance(kind, st.DecimalType):
        number = int(value.scaleb(kind.scale))
        if kind.precision <= 18:
            return struct.pack("<q", number)
        return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    if isinstance(kind, st.StringType):
        return str(value).encode()
    return bytes(value) if isinstance(kind, st.BinaryType) else FIXED[type(kind)].pack(value)
