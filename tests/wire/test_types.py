"""The primitive types: known bytes, round trips, and wrong lengths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from penstock.wire.protocol import types
from penstock.wire.protocol.types import BadBytes

Writer = Callable[[bytearray, int], None]
Reader = Callable[[memoryview, int], tuple[int, int]]


def written(write: Writer, value: int) -> bytes:
    out = bytearray()
    write(out, value)
    return bytes(out)


@pytest.mark.parametrize(
    ("write", "read", "value", "expected"),
    [
        (types.write_unsigned, types.read_unsigned, 0, "00"),
        (types.write_unsigned, types.read_unsigned, 127, "7f"),
        (types.write_unsigned, types.read_unsigned, 300, "ac02"),
        (types.write_unsigned, types.read_unsigned, 0xFFFFFFFF, "ffffffff0f"),
        (types.write_compact_length, types.read_compact_length, -1, "00"),
        (types.write_compact_length, types.read_compact_length, 5, "06"),
    ],
)
def test_the_bytes_are_those_of_the_protocol_guide(write: Writer, read: Reader, value: int, expected: str) -> None:
    assert written(write, value).hex() == expected
    assert read(memoryview(bytes.fromhex(expected)), 0) == (value, len(expected) // 2)


@given(st.integers(0, (1 << 32) - 1))
def test_a_number_is_read_as_it_was_written(value: int) -> None:
    data = b"?" + written(types.write_unsigned, value)
    assert types.read_unsigned(memoryview(data), 1) == (value, len(data))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("", "byte 0: the bytes end"),
        ("8080", "byte 2: the bytes end"),
        ("ffffffff1f", "byte 0: a varint of more than 32 bits"),
        ("808080808000", "byte 0: a varint of more than 32 bits"),
    ],
)
def test_a_varint_that_ends_too_early_or_too_late_is_refused(data: str, problem: str) -> None:
    with pytest.raises(BadBytes, match=problem):
        types.read_unsigned(memoryview(bytes.fromhex(data)), 0)


def test_a_number_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot hold -1"):
        types.write_unsigned(bytearray(), -1)


def test_a_length_beyond_the_end_is_refused() -> None:
    with pytest.raises(BadBytes, match="byte 2: 9 bytes announced, 1 left"):
        types.end_of(memoryview(b"abc"), 2, 9)


def test_text_that_is_not_utf_8_is_refused_at_its_byte() -> None:
    with pytest.raises(BadBytes, match="byte 2: a string that is not UTF-8"):
        types.read_text(memoryview(b"\0a\xff"), 1, 2)


def test_lengths_of_null() -> None:
    assert (types.null_or(-1, 0), types.null_or(3, 0), types.not_null(0, 0)) == (-1, 3, 0)
    with pytest.raises(BadBytes, match="length -2"):
        types.null_or(-2, 0)
    with pytest.raises(BadBytes, match="null is not allowed"):
        types.not_null(-1, 0)
