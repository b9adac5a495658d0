"""A topic's schema and the path of its key as arrays, for the loop of `scan_kernel`, which checks bodies as bytes.

A plan has only what that loop decides as the validator does: types, properties, required and additional ones, items,
lengths, bounds, enumerations of strings, times. A schema with anything else has no plan, and its events are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from penstock.native import Array
from penstock.native.byte_loads import WIDE
from penstock.wire.records.arrays import read_only

ANY, FORBIDDEN = -1, -2
"""Instead of a node: any value is valid, or none is."""
OBJECT, ARRAY, TEXT, WHOLE, BROKEN, TRUTH, NULL = (1 << bit for bit in range(7))
"""Types of values; BROKEN is a number with a fraction or an exponent."""
ALL = 127
MOST = 1 << 62
MOST_PROPERTIES = 62
"""Of one node: an integer has a bit for each."""
EXACT = 1 << 53
"""Integers up to here are exact as doubles."""

TYPES, FIRST, COUNT, REQUIRED, EXTRA, ITEMS, LEAST, LARGEST, SHORTEST, LONGEST, WORD, WORDS, RANGE, TIME, KEY = range(
    15
)
"""A node's columns. FIRST and COUNT are its properties, WORD and WORDS the strings it allows (-1: all)."""
BOUNDED, LOW_OPEN, HIGH_OPEN = 1, 2, 4
"""In RANGE: there is a range, and its low or high end is exclusive."""

_TYPES = {
    "object": OBJECT,
    "array": ARRAY,
    "string": TEXT,
    "integer": WHOLE,
    "number": WHOLE | BROKEN,
    "boolean": TRUTH,
    "null": NULL,
}
_SAYS_NOTHING = {"title", "description", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_SAYS_NOTHING |= {"$defs", "definitions"}
_PLAIN = re.compile(r'[^\x00-\x1f"\\]*')
_AT_ROOT = {"$schema", "$id"}


class SchemaPlan(NamedTuple):
    """Nodes and bounds have a row for each node; a property has its name's start and length in `text`, and its node.

    `text` ends with padding, so that loops may load more bytes than the last name has.
    """

    root: int
    nodes: Array
    bounds: Array
    properties: Array
    words: Array
    text: Array
    keyed: bool


class _Unknown(Exception):
    """A schema that only the validator can decide."""


@dataclass
class _Node:
    types: int = ALL
    properties: dict[str, int] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    extra: int = ANY
    items: int = ANY
    counts: tuple[int, int] = (0, MOST)
    lengths: tuple[int, int] = (0, MOST)
    words: tuple[str, ...] | None = None
    low: float = -np.inf
    high: float = np.inf
    range: int = 0
    time: bool = False
    key: bool = False


def plan(document: Any, key: tuple[str, ...]) -> SchemaPlan | None:
    """The plan for events of this schema (True: any) with a key at this path (empty: none); None if there is none."""
    try:
        made = _Nodes(document)
        root = made.of(document, known=_AT_ROOT)
        if key:
            root = made.with_key(root, key)
        return _arrays(made.nodes, root, keyed=bool(key))
    except (_Unknown, RecursionError):
        return None


class _Nodes:
    """The nodes of one document."""

    def __init__(self, document: Any) -> None:
        self.nodes: list[_Node] = []
        self._document = document
        self._places: dict[str, int] = {}

    def of(self, schema: Any, known: set[str] | frozenset[str] = frozenset()) -> int:
        """The node of a schema; keywords in `known` are ignored."""
        if schema is True:
            return ANY
        if not isinstance(schema, dict):
            raise _Unknown
        said = {name: value for name, value in schema.items() if name not in _SAYS_NOTHING | known}
        if not said:
            return ANY
        if "$ref" in said:
            return self._referred(said)
        self.nodes.append(node := _Node())
        index = len(self.nodes) - 1
        if known:
            self._places["#"] = index
        self._fill(node, said)
        return index

    def with_key(self, index: int, path: tuple[str, ...]) -> int:
        """A copy of a node in which the property at `path` is the key."""
        node = self.nodes[index] if index != ANY else _Node()
        node = replace(node, properties=dict(node.properties))
        if path:
            below = node.properties.get(path[0])
            if below is None and node.extra != ANY:
                raise _Unknown
            node.properties[path[0]] = self.with_key(ANY if below is None else below, path[1:])
        else:
            node.key = True
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _referred(self, said: Mapping[str, Any]) -> int:
        """The node of a reference in the document."""
        place = said["$ref"]
        if len(said) > 1 or not isinstance(place, str) or not (place == "#" or place.startswith("#/")):
            raise _Unknown
        if place not in self._places:
            found = self._document
            for step in place[2:].split("/") if place != "#" else ():
                name = unquote(step).replace("~1", "/").replace("~0", "~")
                if not isinstance(found, dict) or name not in found:
                    raise _Unknown
                found = found[name]
            self.nodes.append(_Node())
            self._places[place] = index = len(self.nodes) - 1
            # Filled afterwards: it may refer to itself.
            self._fill(self.nodes[index], self._plain(found))
        return self._places[place]

    def _plain(self, schema: Any) -> dict[str, Any]:
        """The keywords of a referenced schema; one with a reference itself is left to the validator."""
        if not isinstance(schema, dict) or "$ref" in schema:
            raise _Unknown
        return {name: value for name, value in schema.items() if name not in _SAYS_NOTHING}

    def _fill(self, node: _Node, said: Mapping[str, Any]) -> None:
        for name, value in said.items():
            self._say(node, name, value)
        if node.words is not None:
            node.types &= TEXT
        if set(node.required) - set(node.properties):
            if node.extra != ANY:
                raise _Unknown
            node.properties |= {name: ANY for name in node.required if name not in node.properties}
        if len(node.properties) > MOST_PROPERTIES:
            raise _Unknown

    def _say(self, node: _Node, name: str, value: Any) -> None:
        match name:
            case "type":
                node.types = sum({_TYPES[one] for one in ([value] if isinstance(value, str) else value)}) & ALL
                if isinstance(value, list) and {"integer", "number"} <= set(value):
                    raise _Unknown
            case "properties":
                node.properties = {key: self.of(below) for key, below in value.items()}
            case "required" if isinstance(value, list):
                node.required = frozenset(value)
            case "additionalProperties":
                node.extra = FORBIDDEN if value is False else self.of(value)
            case "items" if not isinstance(value, list):
                node.items = self.of(value)
            case "minItems" | "maxItems":
                node.counts = _narrowed(node.counts, name, value)
            case "minLength" | "maxLength":
                node.lengths = _narrowed(node.lengths, name, value)
            case "enum" if all(isinstance(one, str) for one in value):
                node.words = _same(node.words, tuple(value))
            case "const" if isinstance(value, str):
                node.words = _same(node.words, (value,))
            case "minimum" | "exclusiveMinimum":
                node.low = _bound(node.low, -np.inf, value)
                node.range |= BOUNDED | (LOW_OPEN if name.startswith("ex") else 0)
            case "maximum" | "exclusiveMaximum":
                node.high = _bound(node.high, np.inf, value)
                node.range |= BOUNDED | (HIGH_OPEN if name.startswith("ex") else 0)
            case "format" if value == "date-time":
                node.time = True
            case _:
                raise _Unknown


def _same(known: tuple[str, ...] | None, words: tuple[str, ...]) -> tuple[str, ...]:
    if known is not None:
        raise _Unknown
    return words


def _narrowed(known: tuple[int, int], name: str, value: Any) -> tuple[int, int]:
    if value != int(value):
        raise _Unknown
    return (int(value), known[1]) if name.startswith("min") else (known[0], int(value))


def _bound(known: float, none: float, value: Any) -> float:
    """A bound as a double; two bounds of a kind and inexact integers are left to the validator."""
    if known != none or isinstance(value, bool) or (isinstance(value, int) and abs(value) > EXACT):
        raise _Unknown
    return float(value)


def _arrays(nodes: list[_Node], root: int, *, keyed: bool) -> SchemaPlan:
    properties: list[tuple[int, int, int]] = []
    words: list[tuple[int, int]] = []
    text, rows = bytearray(), []
    for node in nodes:
        first, word = len(properties), len(words)
        for name, below in node.properties.items():
            if _PLAIN.fullmatch(name) is None:
                raise _Unknown  # it can come only with escapes
            properties.append((len(text), len(name.encode()), below))
            text += name.encode()
        for one in node.words or ():
            words.append((len(text), len(one.encode())))
            text += one.encode()
        required = sum(1 << bit for bit, name in enumerate(node.properties) if name in node.required)
        shape = first, len(node.properties), required, node.extra, node.items, *node.counts, *node.lengths
        allowed = word, -1 if node.words is None else len(node.words)
        rows.append((node.types, *shape, *allowed, node.range, node.time, node.key))
    return SchemaPlan(
        root,
        read_only(np.array(rows, np.int64).reshape(-1, KEY + 1)),
        read_only(np.array([(node.low, node.high) for node in nodes], np.float64).reshape(-1, 2)),
        read_only(np.array(properties, np.int64).reshape(-1, 3)),
        read_only(np.array(words, np.int64).reshape(-1, 2)),
        read_only(np.frombuffer(bytes(text) + bytes(WIDE), np.uint8)),
        keyed,
    )
