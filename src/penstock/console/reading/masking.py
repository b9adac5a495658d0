"""Hides the values of fields by name in records: in JSON at any depth, and in headers.

A name is that of a field, such as `email`, or the end of a path, such as `after.email`; case does not matter. What has
no fields is hidden whole if it might show one: text that names a masked field, such as JSON that is cut off, and bytes
that nothing can read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.codec import exact_json
from penstock.process.secret_settings import HIDDEN

DEEPEST = 100
"""Levels of JSON that are looked through; deeper values are hidden."""
HEX = re.compile("0x[0-9a-f]*")


class Mask:
    """The names of fields whose values are hidden; without names nothing is."""

    def __init__(self, names: Iterable[str]) -> None:
        self._paths = [tuple(name.lower().split(".")) for name in names if name.strip(". ")]
        self._last = {path[-1] for path in self._paths}

    def __bool__(self) -> bool:
        return bool(self._paths)

    def names(self, path: Sequence[str]) -> bool:
        """Whether the field at this path, in lower case and without the positions in lists, is hidden."""
        return any(tuple(path[-len(hidden) :]) == hidden for hidden in self._paths)

    def text(self, text: str, format: str) -> str:
        """A key or value as the page shows it, hidden where it must be; `format` is one of the API's formats."""
        if not self._paths:
            return text
        if format == "hex":
            return HIDDEN
        try:
            value = exact_json.loads(text)
        except (ValueError, RecursionError):
            return self._plain(text)
        if not isinstance(value, (dict, list)):
            return self._plain(text)
        masked = self.value(value)
        return text if masked == value else _json(masked)

    def value(self, value: Any, path: tuple[str, ...] = (), depth: int = 0) -> Any:
        """Parsed JSON with its masked fields hidden; `depth` counts objects and lists."""
        if not self._paths:
            return value
        if depth > DEEPEST:
            return HIDDEN
        if isinstance(value, dict):
            return {name: self._field(inner, (*path, name.lower()), depth + 1) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner, path, depth + 1) for inner in value]
        return self._plain(value) if isinstance(value, str) else value

    def headers(self, headers: Iterable[Sequence[Any]]) -> list[list[Any]]:
        """Headers, which are pairs of a name and text or None, with the values of masked names hidden."""
        return [[key, None if value is None else self._header(key, value)] for key, value in headers]

    def _header(self, key: str, value: str) -> str:
        # Bytes that are not text are shown in hex.
        format = "hex" if HEX.fullmatch(value) else "text"
        return HIDDEN if self.names((key.lower(),)) else self.text(value, format)

    def _field(self, value: Any, path: tuple[str, ...], depth: int) -> Any:
        return HIDDEN if self.names(path) else self.value(value, path, depth)

    def _plain(self, text: str) -> str:
        """Text without fields; it may be a part of JSON, or JSON in a string."""
        low = text.lower()
        return HIDDEN if any(name in low for name in self._last) else text


def _json(value: Any) -> str:
    """JSON that can be encoded: a string of JSON may have half of a character."""
    text = exact_json.dumps(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return exact_json.dumps(value, ascii=True)
    return text
