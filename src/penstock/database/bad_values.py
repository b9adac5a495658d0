"""Cells that cannot be read: finds their rows, and builds the error messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date

import pyarrow as pa

from penstock.database.columns import BadValue, Cells, decode
from penstock.database.cql_types import CqlTable, CqlType, spark_type
from penstock.spark_runtime.arrow_types import to_arrow_type

SHOWN = 40
"""Bytes of a cell that a message shows."""

Read = Callable[[Cells], pa.Array]


def bad_rows(read: Read, cells: Cells) -> Iterator[tuple[int, str]]:
    """Yield each row whose cell makes `read` raise BadValue, with the reason.

    The cells are halved until one is left: a column with a few bad cells is read a few times, and no column more than
    twice for each of its rows.
    """
    try:
        read(cells)
    except BadValue as error:
        if len(cells) == 1:
            yield 0, error.what
            return
        half = len(cells) // 2
        for begin, part in ((0, cells.part(0, half)), (half, cells.part(half, len(cells)))):
            for row, reason in bad_rows(read, part):
                yield begin + row, reason


def decoded(
    table: CqlTable, column: str, cells: Cells, target: pa.DataType, key: Mapping[str, Cells], where: str = ""
) -> pa.Array:
    """Decode the cells of a table's column to an Arrow array; `key` has the cells of the rows' primary key.

    Raises BadValue with the table, the column, the key and the bytes of the first cell that cannot be read.
    """
    kinds = {each.name: each.type for each in table.columns}

    def read(some: Cells) -> pa.Array:
        return decode(kinds[column], some, target)

    try:
        return read(cells)
    except BadValue:
        first_bad = next(bad_rows(read, cells), None)
        if first_bad is None:
            raise
    row, reason = first_bad
    raise BadValue(
        f"column {column} of {table.full_name} has a value that cannot be read: {reason}",
        where=f"key {key_text(kinds, key, row)}, cell {excerpt(cells.text(row))}",
        next="write the column of this row again, or leave the column out",
    )


def key_text(kinds: Mapping[str, CqlType], key: Mapping[str, Cells], row: int) -> str:
    """The primary key of a row as a JSON object; a column that cannot be read is given as its bytes."""
    return json.dumps(
        {name: _plain(kinds[name], cells.part(row, row + 1)) for name, cells in key.items()},
        default=_as_text,
        ensure_ascii=False,
    )


def value_text(kind: CqlType, cell: Cells) -> str:
    """The value of one cell as JSON; one that cannot be read is given as its bytes."""
    return json.dumps(_plain(kind, cell), default=_as_text, ensure_ascii=False)


def _plain(kind: CqlType, cell: Cells) -> object:
    try:
        return decode(kind, cell, to_arrow_type(spark_type(kind), timezone="UTC"))[0].as_py()
    except (BadValue, ValueError, OverflowError):  # Python's dates have a smaller range than Spark's
        return excerpt(cell.text(0))


def _as_text(value: object) -> str:
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return value.isoformat() if isinstance(value, date) else str(value)


def excerpt(data: bytes) -> str:
    """The first bytes in hexadecimal, and the total number if there are more."""
    more = f"... ({len(data)} bytes)" if len(data) > SHOWN else ""
    return f"0x{data[:SHOWN].hex()}{more}"
