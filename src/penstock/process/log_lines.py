"""Log lines of Penstock on standard error: text for people, or a JSON object per line.

The Python processes that Spark starts write their lines in the same form, which they inherit by the environment.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

FORM = "PENSTOCK_LOG"
TEXT, JSON = "text", "json"

LONGEST_QUOTED = 200
"""The most characters of a quoted text."""

_EVERY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every record; all others were given with `extra`."""
_CLEAR = "\r\x1b[2K"


def begin() -> Terminal:
    """Write this process's lines of level INFO and above in the form that the environment asks for."""
    lines = Terminal(sys.stderr)
    lines.setFormatter(JsonLogLines() if is_json() else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("penstock")
    logger.handlers[:] = [lines]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return lines


def quoted(text: object, most: int = LONGEST_QUOTED) -> str:
    """A text that somebody else wrote, for a line of the log: cut, and in quotes, so that it stays within one line."""
    whole = str(text)
    return repr(whole) if len(whole) <= most else f"{whole[:most]!r}..."


def is_json() -> bool:
    return os.environ.get(FORM) == JSON


class JsonLogLines(logging.Formatter):
    """`ts` in UTC, `level` and `msg`, then what was given with `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        said: dict[str, Any] = {"ts": time, "level": record.levelname.lower(), "msg": record.getMessage()}
        said |= {name: value for name, value in vars(record).items() if name not in _EVERY}
        if record.exc_info:
            said["trace"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str, ensure_ascii=False)


class Terminal(logging.StreamHandler[TextIO]):
    """Writes lines, and keeps one below them that `status` replaces."""

    _status = ""
    _missing = 0
    _why = ""

    def emit(self, record: logging.LogRecord) -> None:
        self._write(_CLEAR if self._status else "")
        if self._missing:
            self._report_missing()
        super().emit(record)
        self._write(self._status)

    def handleError(self, record: logging.LogRecord) -> None:
        """Counts lines that cannot be written: of these only a later line can tell."""
        if isinstance(error := sys.exception(), OSError):
            self._missing += 1
            self._why = error.strerror or str(error)
        else:
            super().handleError(record)

    def status(self, text: str) -> None:
        """Replace the last line; "" removes it. Only for a terminal."""
        self.acquire()
        try:
            before, self._status = self._status, text[: shutil.get_terminal_size().columns - 1]
            self._write((_CLEAR if before else "") + self._status)
        finally:
            self.release()

    def _report_missing(self) -> None:
        try:
            # The last line may have been written in part.
            self.stream.write(self.terminator)
            self.flush()
        except OSError:
            return
        missing, self._missing = self._missing, 0
        said = f"{missing} lines of this log are missing here, as they could not be written: {self._why}"
        about = {"name": "penstock", "levelno": logging.WARNING, "levelname": "WARNING", "msg": said}
        super().emit(logging.makeLogRecord({**about, "event": "warning", "missing": missing}))
        if self._missing:
            # Nor could this line, which is none of those that are missing.
            self._missing = missing

    def _write(self, text: str) -> None:
        if text:
            # Only a terminal has a status, and it may be closed.
            with suppress(OSError):
                self.stream.write(text)
                self.flush()
