"""Reads and writes the primitive types of Kafka's protocol; knows no message.

A reader takes a view and a position, and returns the value and the position after it; a writer appends to a bytearray.
Readers check each length against the bytes present before they use it, so a wrong length costs no memory. The encodings
are those of the protocol guide, section "Protocol Primitive Types"; the compact encodings are from KIP-482.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

Buffer = bytes | bytearray | memoryview
# Positions in the encoded bytes, and the chunks of records that belong there: records are passed on without a copy.
Cuts = list[tuple[int, Sequence[Buffer]]]

# The types of fixed size, as codes of `struct`; a uuid is 16 bytes.
FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}

INT16 = Struct(">h")
INT32 = Struct(">i")


class BadBytes(ValueError):
    """Bytes that are not valid: the position, and what is wrong."""

    def __init__(self, position: int, what: str) -> None:
        super().__init__(position, what)
        self.position, self.what = position, what

    def __str__(self) -> str:
        return f"byte {self.position}: {self.what}"


def end_of(data: memoryview, position: int, size: int) -> int:
    """The position after `size` bytes, which must be present."""
    end = position + size
    if end > len(data):
        raise BadBytes(position, f"{size} bytes announced, {max(len(data) - position, 0)} left")
    return end


def read_int16(data: memoryview, position: int) -> tuple[int, int]:
    return INT16.unpack_from(data, position)[0], position + 2


def read_int32(data: memoryview, position: int) -> tuple[int, int]:
    return INT32.unpack_from(data, position)[0], position + 4


def write_int16(out: bytearray, value: int) -> None:
    out += INT16.pack(value)


def write_int32(out: bytearray, value: int) -> None:
    out += INT32.pack(value)


def write_uuid(out: bytearray, value: bytes) -> None:
    if len(value) != 16:
        raise ValueError(f"a uuid has 16 bytes, not {len(value)}")
    out += value


def read_unsigned(data: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits: seven bits per byte, the lowest first."""
    value, at = 0, position
    for shift in range(0, 32, 7):
        if at >= len(data):
            raise BadBytes(at, "the bytes end inside a varint")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    if byte > 0x7F or value >> 32:
        raise BadBytes(position, "a varint of more than 32 bits")
    return value, at


def write_unsigned(out: bytearray, value: int) -> None:
    if value < 0:
        raise ValueError(f"an unsigned varint cannot hold {value}")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_compact_length(data: memoryview, position: int) -> tuple[int, int]:
    """A length that is stored plus one, so that 0 means null; returns -1 for null."""
    value, position = read_unsigned(data, position)
    return value - 1, position


def write_compact_length(out: bytearray, value: int) -> None:
    write_unsigned(out, value + 1)


def not_null(length: int, position: int) -> int:
    """The length, which must not be that of null."""
    if length < 0:
        raise BadBytes(position, f"length {length} where null is not allowed")
    return length


def null_or(length: int, position: int) -> int:
    """The length; -1 means null, and no other negative length is valid."""
    if length < -1:
        raise BadBytes(position, f"length {length} is not valid")
    return length


def read_text(data: memoryview, position: int, size: int) -> tuple[str, int]:
    end = end_of(data, position, size)
    try:
        return str(data[position:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise BadBytes(position + error.start, "a string that is not UTF-8") from None


def write_records(out: bytearray, cuts: Cuts, value: Buffer | Sequence[Buffer], compact: bool) -> None:
    """Write the size of the records, and store in `cuts` that their bytes belong here."""
    chunks = (value,) if isinstance(value, Buffer) else value
    size = sum(memoryview(chunk).nbytes for chunk in chunks)
    (write_compact_length if compact else write_int32)(out, size)
    cuts.append((len(out), chunks))


def joined(out: bytearray, cuts: Cuts) -> list[Buffer]:
    """The encoded bytes with the chunks of `cuts` at their positions, without a copy."""
    if not cuts:
        return [out]
    view, start, chunks = memoryview(out), 0, list[Buffer]()
    for position, foreign in cuts:
        chunks += [view[start:position], *foreign]
        start = position
    return [chunk for chunk in (*chunks, view[start:]) if len(chunk)]
