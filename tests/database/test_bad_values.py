"""Which cells of a column cannot be read, and the error messages for them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from cql_values import cells_of
from log_pages import table

from penstock.database.bad_values import bad_rows, decoded, key_text
from penstock.database.columns import BadValue, decode
from penstock.database.cql_types import parse_type

INT = parse_type("int", {})


@pytest.mark.parametrize("bad", [[], [0], [6], [0, 1, 6], list(range(7))])
def test_each_bad_cell_of_a_column_is_found_and_no_other(bad: list[int]) -> None:
    cells = cells_of([b"\1\2" if row in bad else bytes([0, 0, 0, row]) for row in range(7)])
    found = list(bad_rows(lambda some: decode(INT, some, pa.int32()), cells))
    assert found == [(row, "a value of type int cannot be read: 0x0102") for row in bad]


def test_a_bad_value_is_told_with_table_column_key_and_bytes() -> None:
    of = table("id int; at timestamp", "", "", "v int")
    key = {"id": cells_of([b"\0\0\0\1", b"\0\0\0\2"]), "at": cells_of([bytes(8), b"\x7f" + b"\xff" * 7])}
    with pytest.raises(BadValue) as error:
        decoded(of, "v", cells_of([None, b"\1" * 50]), pa.int32(), key)
    assert not error.value.retriable
    assert str(error.value) == (
        f"column v of ks.t has a value that cannot be read: a value of type int cannot be read: 0x{'01' * 40} "
        f'(key {{"id": 2, "at": "0x7fffffffffffffff"}}, cell 0x{"01" * 40}... (50 bytes)). '
        "Next: write the column of this row again, or leave the column out"
    )


def test_a_key_is_told_as_json() -> None:
    texts = {"b": "blob", "t": "timestamp", "d": "date", "n": "int", "s": "text"}
    cells = [b"\1\xff", (86_400_000).to_bytes(8, "big"), (1 << 31).to_bytes(4, "big"), None, "é".encode()]
    kinds = {name: parse_type(text, {}) for name, text in texts.items()}
    key = {name: cells_of([cell]) for name, cell in zip(texts, cells, strict=True)}
    assert key_text(kinds, key, 0) == (
        '{"b": "0x01ff", "t": "1970-01-02T00:00:00+00:00", "d": "1970-01-01", "n": null, "s": "é"}'
    )
