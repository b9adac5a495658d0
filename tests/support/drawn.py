"""Tables drawn as text, one row a line, for the input and the output of streams.

    | k | at | n |
    | a | 3  | 1 |

Values are read as JSON where they are some, `-` is null, all else is text.
"""

from __future__ import annotations

import json
from typing import Any


def drawn(text: str) -> list[dict[str, Any]]:
    """The rows of a drawn table."""
    lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.strip().splitlines()]
    return [dict(zip(lines[0], map(_value, cells), strict=True)) for cells in lines[1:]]


def drawing(rows: list[dict[str, Any]], columns: list[str]) -> list[tuple[Any, ...]]:
    """Rows to be compared whatever their order is: of each the columns, sorted."""
    return sorted((tuple(row[column] for column in columns) for row in rows), key=repr)


def same(found: list[dict[str, Any]], expected: str) -> None:
    """The rows are those drawn, in the columns drawn, in any order."""
    rows = drawn(expected)
    columns = list(rows[0]) if rows else [cell.strip() for cell in expected.strip().strip("|").split("|")]
    assert drawing(found, columns) == drawing(rows, columns)


def _value(cell: str) -> Any:
    if cell == "-":
        return None
    try:
        return json.loads(cell)
    except ValueError:
        return cell
