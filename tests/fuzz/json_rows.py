"""JSON objects of a topic as rows of a global table: values are read as if each were alone, and as Python's json does.

An input is values with a length of two bytes before each. What is compared: whether one of them is read the same
alone, strings and integers of good ones where Python's json has one of these, and that Arrow finds nothing wrong.
"""

from __future__ import annotations

import json
import random as randoms
import zlib
from typing import Any

import pyarrow as pa

from penstock.table.json_rows import decoded

from .mutate import mutated, noise
from .runner import Decoder, Difference

SCHEMA = pa.schema(
    {"s": pa.string(), "n": pa.int64(), "o": pa.struct({"s": pa.string(), "l": pa.list_(pa.int64())}), "d": pa.date32()}
    | {"t": pa.timestamp("us", "UTC"), "f": pa.float32()}
)
SMALLEST, LARGEST = -(2**63), 2**63 - 1
PIECES = (
    "",
    " ",
    "\n",
    '{"s":',
    "}",
    '"',
    "[",
    "]",
    "{",
    "null",
    '{"n":1}',
    '{"f":NaN}',
    '{"t":1780210800}',
    '{"t":"2026-01-02T03:04:05Z"}',
    '{"s":"x"}{"n":2}',
    "\ufeff",
    "\\ud800",
    "\x00",
)


def _draw(random: randoms.Random) -> bytes:
    values = [_value(random) for _ in range(random.randint(1, 5))]
    if random.random() < 0.4:
        values = [mutated(random, value) if random.random() < 0.5 else value for value in values]
    return b"".join(len(value[:65535]).to_bytes(2, "big") + value[:65535] for value in values)


def _value(random: randoms.Random) -> bytes:
    if random.random() < 0.1:
        return noise(random, 40) if random.random() < 0.3 else "".join(random.choices(PIECES, k=3)).encode()
    made = {
        name: _any(random, 0) for name in random.sample(["s", "n", "o", "d", "t", "f", "more"], random.randint(0, 5))
    }
    text = json.dumps(made, ensure_ascii=random.random() < 0.5, separators=random.choice(((",", ":"), (", ", ": "))))
    return random.choice(("", "", " ", "\n")).encode() + text.encode() + random.choice(("", "", " ", "\r\n")).encode()


def _any(random: randoms.Random, depth: int) -> Any:
    kind = random.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return None
    if kind < 3:
        return random.choice((0, 1, -1, 7.5, 1e300, True, 2**63 - 1, 2**63, -(2**63), 10**30, random.randrange(10**6)))
    if kind < 6:
        return random.choice(
            (
                "",
                "x",
                "\u00fc",
                "\U0001f600",
                "2026-01-02",
                "2026-01-02T03:04:05Z",
                "NaN",
                "12",
                '"',
                "}\n{",
                "a" * random.randrange(300),
            )
        )
    if kind == 6:
        return [_any(random, depth + 1) for _ in range(random.randrange(4))]
    return {random.choice(("s", "l", "x")): _any(random, depth + 1) for _ in range(random.randrange(3))}


def _values(data: bytes) -> list[bytes]:
    values, at = [], 0
    while at + 2 <= len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        values.append(data[at + 2 : end])
        at = end
    return values


def _check(data: bytes) -> bool:
    values = _values(data)
    rows, good = decoded(pa.array(values, pa.binary()), SCHEMA)
    rows.validate(full=True)
    if rows.schema != SCHEMA or len(rows) != sum(map(int, good)):
        raise Difference(f"{len(rows)} rows of {rows.schema} for {good}")
    found = iter(rows.to_pylist())
    read = [next(found) if is_good else None for is_good in good]
    for value, row in zip(values, read, strict=True):
        if row is not None:
            _compare(value, row)
    if values:
        # Reading costs most by far, so of each input one value is read alone, too.
        at = zlib.crc32(data) % len(values)
        _compare_alone(values[at], read[at])
    return bool(len(rows))


def _compare_alone(value: bytes, row: dict[str, Any] | None) -> None:
    alone, good = decoded(pa.array([value], pa.binary()), SCHEMA)
    # As text, since NaN equals nothing.
    if repr(alone.to_pylist()) != repr([] if row is None else [row]) or bool(good[0]) != (row is not None):
        raise Difference(f"{value!r} is {row}; alone: {alone.to_pylist()}")


def _compare(value: bytes, row: dict[str, Any]) -> None:
    try:
        # Of a name that stands twice either value may be taken.
        said = json.loads(value.decode(), object_pairs_hook=lambda pairs: pairs)
    except ValueError as error:
        raise Difference(f"{value!r} was read as {row}; json: {error}") from None
    except RecursionError:
        return
    for name in ("s", "n"):
        given = [one for other, one in said if other == name]
        if len(given) == 1 and _is_sure(name, given[0]) and row[name] != given[0]:
            raise Difference(f"{name} of {value!r} is {row[name]!r}")


def _is_sure(name: str, value: Any) -> bool:
    """Whether the column must have just this value."""
    return type(value) is str if name == "s" else type(value) is int and SMALLEST <= value <= LARGEST


DECODER = Decoder(name="json_rows", draw=_draw, check=_check)
