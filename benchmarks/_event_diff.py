"""What is not the same in two records of a topic, of which one is ScyllaDB's connector's and the other ours."""

from __future__ import annotations

import json
import re
from typing import Any

Record = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Key, value and headers, as a consumer gets them."""

# What differs from run to run: the times of reading, of which some are null, and the version.
READ = re.compile(rb'"op":"[a-z]","ts_ms":\d+,"transaction":null,"ts_us":(?:\d+|null),"ts_ns":(?:\d+|null)')
VERSION = re.compile(rb'("source":\{"version":")[^"]*')
# Characters beyond U+FFFF, which the connector escapes in values too (docs/events.md).
ESCAPED = re.compile(rb"\\uD[89AB]..\\uD[C-F]..")


def comparable(record: Record) -> Record:
    key, value, headers = record
    if value is not None:
        value = ESCAPED.sub(lambda halves: json.loads(b'"%s"' % halves[0]).encode(), value)
        value = READ.sub(lambda times: re.sub(rb"\d+", b"0", times[0]), VERSION.sub(rb"\1", value))
    return key, value, headers


def members(data: bytes | None, path: str) -> dict[str, str]:
    """Each leaf of a JSON text by its path, numbers as they are written."""
    found: dict[str, str] = {}

    def walk(value: Any, at: str) -> None:
        if isinstance(value, dict | list) and value:
            for name, each in value.items() if isinstance(value, dict) else enumerate(value):
                walk(each, f"{at}.{name}")
        else:
            found[at] = repr(value)

    walk(data and json.loads(data, parse_float=str, parse_int=str), path)
    return found


def without_buffers(reference: Record, penstock: Record) -> tuple[Record, Record]:
    """Both without the headers of bytes: there the connector has a buffer's position, on purpose we have the bytes."""
    buffers = {name for name, value in reference[2] if value and value.startswith(b"java.nio.")}
    pruned = [tuple(one for one in headers if one[0] not in buffers) for _, _, headers in (reference, penstock)]
    return (*reference[:2], pruned[0]), (*penstock[:2], pruned[1])


def difference(reference: Record | None, penstock: Record | None) -> dict[str, str]:
    """What is not the same in two records: the member's path, and both values."""
    if reference is None or penstock is None:
        return {"the record": f"{reference and reference[1]!r} {penstock and penstock[1]!r}"}
    reference, penstock = without_buffers(reference, penstock)
    sides = [members(key, "key") | members(value, "value") for key, value, _ in (reference, penstock)]
    paths = [path for path in {**sides[0], **sides[1]} if sides[0].get(path) != sides[1].get(path)]
    found = {path: f"{sides[0].get(path)} {sides[1].get(path)}" for path in paths}
    if reference[2] != penstock[2]:
        found["headers"] = f"{reference[2]} {penstock[2]}"
    if not found and reference != penstock:
        found["text"] = f"{reference[1]!r} {penstock[1]!r}"
    return found
