"""Byte strings as slices of a buffer, as columns, and their checksum."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from penstock.native import crc32c
from penstock.native.jit import read_only
from penstock.native.text_slices import Texts, column

TEXTS = st.lists(st.none() | st.binary(max_size=12), max_size=8)


@given(st.lists(TEXTS, max_size=4))
def test_a_column_has_the_texts_of_all_parts_in_order(parts: list[list[bytes | None]]) -> None:
    texts = [text for part in parts for text in part]
    found = column([Texts.of(part) for part in parts])
    found.validate(full=True)
    assert found.to_pylist() == texts
    assert found.null_count == texts.count(None)
    assert found.type == pa.large_binary()


@given(TEXTS)
def test_texts_are_listed_as_they_were_given(texts: list[bytes | None]) -> None:
    found = Texts.of(texts)
    assert found.listed() == texts
    assert sum(len(text or b"") for text in texts) <= found.bound()


@given(st.none() | st.binary(max_size=9), st.integers(0, 9))
def test_the_same_text_for_all_takes_its_bytes_once(text: bytes | None, count: int) -> None:
    found = Texts.same(text, count)
    assert found.listed() == [text] * count
    assert found.data == (text or b"")
    assert column([found, found]).to_pylist() == [text] * 2 * count
    assert found.bound() >= count * len(text or b"") or count == 0


def test_slices_may_overlap_and_leave_gaps() -> None:
    found = Texts(b"abcdef", np.array([4, 0, 1, 6]), np.array([2, 3, 3, 0]))
    assert found.listed() == [b"ef", b"abc", b"bcd", b""]
    assert found.bound() >= 6


@pytest.mark.parametrize(
    ("data", "checksum"),
    [  # RFC 3720, B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"", 0),
    ],
)
def test_checksums_of_the_rfc(data: bytes, checksum: int) -> None:
    for form in (data, bytearray(data), memoryview(data), memoryview(b"x" + data + b"y")[1:-1]):
        assert crc32c(form) == checksum


def test_a_buffer_may_be_released_after_its_checksum() -> None:
    data = bytearray(b"abc")
    crc32c(data)
    data += b"d"  # raises BufferError while somebody has its buffer


def test_a_read_only_array_refuses_writes() -> None:
    array = read_only(np.zeros(2))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
