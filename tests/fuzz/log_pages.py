"""Pages of a change log, wherever they end, compared with a model that reads the log's rows in plain Python.

An input is a line of JSON with the table, the images and the number of rows of each page, followed by the bytes of the
rows. The decoder's changes must be the changes of the model: which rows form a change, its images, what it wrote, and
which of its cells cannot be read. Only the databases' own connectors read these pages, and their drivers decode them:
so the model follows docs/cdc.md, and cells are read by the rules of `cql_cells`. The decoder must refuse a page whose
rows are incomplete, and a row that is not a row of a change log.
"""

from __future__ import annotations

import json
import random as randoms
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from log_pages import stream_id, table, time_of

from penstock.cdc.cdc_tables import FIXED_COLUMNS, Images, LogLayout, frame_schema, layout
from penstock.cdc.change_decoder import ChangeDecoder
from penstock.database import Page
from penstock.database.columns import BadValue
from penstock.database.cql_types import Column, CqlTable, CqlType
from penstock.errors import PenstockError
from penstock.spark_runtime.arrow_types import to_arrow_schema

from .cql_cells import NoValue, by_the_rules, drawn_cell, drawn_type, laid, same
from .mutate import mutated
from .runner import Decoder, Difference

T0 = 1_700_000_000_000_000
CHANGED = ("op", "operation", "key", "before", "after", "delta", "written", "deleted", "deleted_elements", "range")
COMPARED = (*CHANGED, "ttl", "ts", "stream_id", "batch_seq_no", "end_of_batch")
STREAM, TIME, SEQUENCE, OPERATION, TTL = range(5)
Cell = bytes | None


@dataclass
class Reader:
    """Reads cells of one change, and stores whether one of them is not valid."""

    columns: LogLayout
    rows: list[list[Cell]]
    bad: bool = field(default=False)

    def cell(self, name: str, row: int | None) -> Cell:
        return None if row is None else self.rows[row][self.columns.at(name)]

    def value(self, kind: CqlType, cell: Cell) -> Any:
        try:
            return by_the_rules(kind, cell)
        except NoValue:
            self.bad = True
            return None

    def read(self, name: str, row: int | None) -> Any:
        return self.value(self.columns.kinds[self.columns.at(name)], self.cell(name, row))

    def image(self, column: Column, row: int | None) -> Any:
        """A column of an image: an empty non-frozen collection is null, and non-frozen lists are maps in the log."""
        cell, kind = self.cell(column.name, row), self.columns.kinds[self.columns.at(column.name)]
        if column.type.multi_cell and column.type.name != "udt" and cell == b"\0\0\0\0":
            return None
        if not (column.type.multi_cell and column.type.name == "list"):
            return self.value(kind, cell)
        try:
            return None if cell is None else _values(column.type, cell)
        except NoValue:
            self.bad = True
            return None

    def flag(self, name: str, row: int) -> bool:
        return self.cell(f"cdc$deleted_{name}", row) == b"\1"


def _values(kind: CqlType, cell: bytes) -> list[Any]:
    """The values of a list that is a map by timeuuid; the timeuuids are not checked."""
    entries = by_the_rules(CqlType("map", (CqlType("blob"), CqlType("blob")), True), _with_ids(cell))
    return [by_the_rules(kind.args[0], None if item is None else item) for _, item in entries]


def _with_ids(cell: bytes) -> bytes:
    """The map with ids in place of null keys, which a map of blobs cannot have."""
    out, at, key = cell[:4], 4, True
    while at < len(cell):
        length = int.from_bytes(cell[at : at + 4], "big", signed=True)
        item = cell[at : at + 4 + max(length, 0)]
        out += b"\0\0\0\0" if key and length < 0 and len(item) == 4 else item
        at, key = at + 4 + max(length, 0), not key
    return out if at <= len(cell) or at == 4 else out + b"?"


def expected(of: CqlTable, columns: LogLayout, rows: list[list[Cell]], images: Images) -> Iterator[dict[str, Any]]:
    """The changes in the rows, and whether each has a `problem`."""
    first = 0
    while first < len(rows):
        end = first + 1
        while end < len(rows) and rows[end][:2] == rows[first][:2]:
            end += 1
        made = list(_changes(of, columns, rows, first, end, images))
        for number, change in enumerate(made):
            yield change | {"end_of_batch": number == len(made) - 1}
        first = end


def _code(rows: list[list[Cell]], row: int) -> int:
    return int(struct.unpack("b", rows[row][OPERATION] or b"")[0])


def _changes(
    of: CqlTable, columns: LogLayout, rows: list[list[Cell]], first: int, end: int, images: Images
) -> Iterator[dict[str, Any]]:
    key = [columns.at(column.name) for column in of.clustering_key]
    hints = {0: first, 9: first}

    def image(kind: int, of_row: int) -> int | None:
        """Search from the last image to the end of the group, then from the group's beginning."""
        order: list[int] = [*range(hints[kind], end), *range(first, hints[kind])]
        for row in order:
            if _code(rows, row) == kind and all(rows[row][at] == rows[of_row][at] for at in key):
                hints[kind] = max(hints[kind], row)
                return row
        return None

    row = first
    while row < end:
        code, change = _code(rows, row), row
        row += 1
        if code in (0, 9):
            continue
        range_end = pre = post = None
        if code in (5, 6):
            if row < end and _code(rows, row) in (7, 8):
                range_end, row = row, row + 1
        elif code < 5:
            pre = image(0, change) if images.before == "full" else None
            post = image(9, change) if images.after == "full" else None
        yield _change(of, Reader(columns, rows), change, code, range_end, pre, post)


def _change(
    of: CqlTable, reader: Reader, row: int, code: int, range_end: int | None, pre: int | None, post: int | None
) -> dict[str, Any]:
    writes, ranged = code in (1, 2), code >= 5
    values = [column.name for column in of.values]
    elements = [column.name for column in of.values if column.type.multi_cell]
    touched = {
        name
        for name in values
        if reader.cell(name, row) is not None
        or reader.flag(name, row)
        or (name in elements and reader.cell(f"cdc$deleted_elements_{name}", row) is not None)
    }
    written = touched if writes else set()

    def before(column: Column) -> Any:
        assert pre is not None
        name = column.name
        known = name not in values or reader.cell(name, pre) is not None or reader.flag(name, pre)
        untouched = code == 1 and not known and name not in written
        return reader.image(column, post if untouched and post is not None else pre)

    clustering = [column.name for column in of.clustering_key]
    lone = code >= 7

    def bound(at: int | None) -> Any:
        made = {name: reader.read(name, at) for name in clustering}
        return made if any(value is not None for value in made.values()) else None

    last = row if lone else range_end
    found = {
        "op": {1: "u", 2: "c"}.get(code, "d"),
        "operation": 5 if ranged else code,
        "key": {c.name: reader.read(c.name, row) for c in of.partition_key}
        | {name: reader.read(name, None if ranged else row) for name in clustering},
        "before": None if pre is None else {c.name: before(c) for c in of.columns},
        "after": None if post is None else {c.name: reader.image(c, post) for c in of.columns},
        # Read for deletes too, whose delta is null: a cell that cannot be read there is a problem as well.
        "delta": {name: reader.read(name, row) for name in values},
        "written": [name for name in values if name in written],
        "deleted": [name for name in values if reader.flag(name, row)],
        "deleted_elements": {name: reader.read(f"cdc$deleted_elements_{name}", row) for name in elements},
        "range": {
            "start": bound(row if ranged and not lone else None),
            "start_inclusive": code != 6,
            "end": bound(last),
            "end_inclusive": last is None or _code(reader.rows, last) != 8,
        }
        | ({"order": [f"{name} ASC" for name in clustering]} if len(clustering) > 1 else {}),
        "ttl": reader.read("cdc$ttl", row),
        "ts": micros(reader.rows[row][TIME] or b""),
        "stream_id": reader.rows[row][STREAM],
        "batch_seq_no": int.from_bytes(reader.rows[row][SEQUENCE] or b"", "big", signed=True),
    }
    for name, there in (("delta", writes), ("deleted_elements", writes), ("range", ranged)):
        if not there:
            found[name] = None
    return found | {"problem": reader.bad or _lacks_key(of, reader, row, code, range_end, written)}


def _lacks_key(of: CqlTable, reader: Reader, row: int, code: int, range_end: int | None, written: set[str]) -> bool:
    """Whether a column of the primary key is missing that the change needs."""
    if any(reader.cell(column.name, row) is None for column in of.partition_key):
        return True
    if not of.clustering_key:
        return False

    def has(at: int) -> list[bool]:
        return [reader.cell(column.name, at) is not None for column in of.clustering_key]

    if code in (1, 2):
        kinds = {column.kind for column in of.values}
        if not any(has(row)) and "static" in kinds:
            return any(column.kind == "regular" and column.name in written for column in of.values)
        return not all(has(row))
    if code in (3, -3):
        return not all(has(row))
    if code < 5:
        return False
    bounds = [(has(row), code in (6, 8))]
    if range_end is not None:
        bounds.append((has(range_end), _code(reader.rows, range_end) == 8))
        if not any(bounds[0][0]) and not any(bounds[1][0]):
            return True
    # A bound names the first columns of the key, and an open one includes all.
    return any(there != sorted(there, reverse=True) or (exclusive and not any(there)) for there, exclusive in bounds)


def micros(time: bytes) -> int:
    """The time of a timeuuid, in microseconds since 1970."""
    low, middle, high = struct.unpack(">IHH", time[:8])
    return int((((high & 0x0FFF) << 48 | middle << 32 | low) - 0x01B21DD213814000) // 10)


def _rows(data: bytes, count: int, width: int) -> list[list[Cell]]:
    """Split the bytes into rows; raises NoValue if they end too early."""
    rows: list[list[Cell]] = []
    at = 0
    for _ in range(count):
        row: list[Cell] = []
        for _ in range(width):
            length = int.from_bytes(data[at : at + 4], "big", signed=True)
            at += 4 + max(length, 0)
            if at > len(data):
                raise NoValue
            row.append(data[at - length : at] if length >= 0 else None)
        rows.append(row)
    return rows


def _places(row: list[Cell]) -> list[int]:
    return [len(cell or b"") for cell in row[: OPERATION + 1]]


def check(data: bytes) -> bool:
    head, _, body = data.partition(b"\n")
    try:
        about = json.loads(head)
        of = table(*about["table"])
        counts, images = [int(rows) for rows in about["pages"]], Images(*about["images"])
    except (ValueError, KeyError, TypeError, IndexError):
        return False
    columns = layout(of)
    try:
        rows = _rows(body, sum(counts), len(columns.names))
    except NoValue:
        _require_refused(of, columns, images, [Page(body, sum(counts), True)])
        return False
    pages, at = [], 0
    for number, count in enumerate(counts):
        pages.append(Page(b"".join(laid(*row) for row in rows[at : at + count]), count, number == len(counts) - 1))
        at += count
    if any(_places(row) != [16, 16, 4, 1] for row in rows):
        _require_refused(of, columns, images, pages)
        return False
    found = _read(of, columns, images, pages)
    wanted = list(expected(of, columns, rows, images))
    if len(found) != len(wanted):
        raise Difference(f"{len(found)} changes, not {len(wanted)}")
    for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        _compare(of, number, ours, theirs)
    return not any(change["problem"] for change in wanted)


def _compare(of: CqlTable, number: int, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name in COMPARED:
        if name in ours and not same(ours[name], theirs[name]):
            raise Difference(f"{of}: change {number} has {name} {ours[name]!r}, not {theirs[name]!r}")
    if (ours["problem"] is not None) != theirs["problem"]:
        raise Difference(f"{of}: change {number}: problem {ours['problem']!r}, not {theirs['problem']}")


def _read(of: CqlTable, columns: LogLayout, images: Images, pages: list[Page]) -> list[dict[str, Any]]:
    schema = to_arrow_schema(frame_schema(of, problem=True), timezone="UTC")
    decoder = ChangeDecoder(columns, images, schema, T0)
    made = []
    for page in pages:
        batch = decoder.decode(page)
        if batch is not None:
            batch.validate(full=True)
            at = batch.schema.get_field_index("ts")
            # Python's timestamps have a smaller range than Spark's.
            batch = batch.set_column(at, "ts", batch.column(at).view("int64"))
            made += batch.to_pylist()
    return made


def _require_refused(of: CqlTable, columns: LogLayout, images: Images, pages: list[Page]) -> None:
    try:
        _read(of, columns, images, pages)
    except BadValue as error:
        raise Difference(f"{of}: a damaged page was reported as a bad value: {error}") from error
    except PenstockError:
        return
    raise Difference(f"{of}: damaged pages were read")


# Inputs


def _drawn_kind(random: randoms.Random, udts: dict[str, Any]) -> str:
    """A type whose values Python can represent, frozen or not."""
    while True:
        found: dict[str, Any] = {}
        text = drawn_type(random, found, 2)
        if not found and "date" not in text and "timestamp" not in text:
            plain = text.removeprefix("frozen<").removesuffix(">") if text.startswith("frozen<") else text
            return plain if random.random() < 0.5 else text


def draw(random: randoms.Random) -> bytes:
    names = iter("abcdefghij")
    parts = [
        "; ".join(f"{next(names)} {random.choice(('int', 'text', 'uuid'))}" for _ in range(count))
        for count in (random.randint(1, 2), random.randint(0, 2))
    ]
    parts += [
        "; ".join(f"{next(names)} {_drawn_kind(random, {})}" for _ in range(count))
        for count in (random.randint(0, 1) if parts[1] else 0, random.randint(0, 3))
    ]
    of = table(*parts)
    columns = layout(of)
    rows = [row for number in range(random.randint(1, 4)) for row in _drawn_group(random, of, columns, number)]
    body = b"".join(laid(*row) for row in rows)
    if random.random() < 0.4:
        body = mutated(random, body)
    cuts = sorted(random.randrange(len(rows) + 1) for _ in range(random.randrange(3)))
    counts = [end - begin for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    images = random.choice((["full", "full"], ["none", "full"], ["none", "none"]))
    return made(parts, images, counts, body)


def made(parts: list[str], images: list[str], pages: list[int], body: bytes) -> bytes:
    """An input: columns of the partition key, of the clustering key, static and regular ones; rows of each page."""
    return json.dumps({"table": parts, "images": images, "pages": pages}).encode() + b"\n" + body


def _drawn_group(random: randoms.Random, of: CqlTable, columns: LogLayout, number: int) -> Iterator[list[Cell]]:
    place: list[Cell] = [stream_id(random.randrange(3)), time_of(T0 + number).bytes]
    keys = {
        column.name: [drawn_cell(random, column.type) for _ in range(2)]
        for column in (*of.partition_key, *of.clustering_key)
    }
    codes = random.choice(([0, 1, 9], [0, 0, 1, 1, 9, 9], [2, 9], [5, 7], [6, 8], [3], [4], [8], [-3], [5], []))
    codes = codes or [random.randrange(-4, 11) for _ in range(random.randint(1, 6))]
    for sequence, code in enumerate(codes):
        row = [*place, struct.pack(">i", sequence), struct.pack("b", code), random.choice((None, None, bytes(8)))]
        for name, kind in zip(columns.names[len(FIXED_COLUMNS) :], columns.kinds[len(FIXED_COLUMNS) :], strict=True):
            if name in keys:
                row.append(random.choice(keys[name]))
            elif random.random() < 0.4:
                row.append(None)
            elif kind.name == "boolean" and name.startswith("cdc$deleted_"):
                row.append(random.choice((b"\1", b"\0", b"")))
            else:
                row.append(drawn_cell(random, kind))
        yield row


DECODER = Decoder(name="log_pages", draw=draw, check=check)
