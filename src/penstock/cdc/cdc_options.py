"""The settings of the change log source, checked when the source is created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, get_args

from penstock.cdc.cdc_tables import Images
from penstock.cdc.generations import MICROSECOND, micros, now_micros
from penstock.database.access import Access, AccessOptions
from penstock.durations import Duration, duration, duration_text, whole
from penstock.errors import PenstockError

Image: TypeAlias = Literal["none", "full"]
Latency: TypeAlias = Literal["safe", "low"]
BadValues: TypeAlias = Literal["stop", "problem"]
IMAGES, LATENCIES, BAD_VALUES = get_args(Image), get_args(Latency), get_args(BadValues)


class CdcOptions(AccessOptions, total=False):
    """The arguments of `cdc.read` that users rarely need; `CdcSettings` describes them."""

    rows: Literal["changes", "log"]
    latency: Latency
    max_rows: int
    max_time: Duration
    partitions: int
    page_size: int
    patience: Duration
    write_times: bool
    packed: bool
    signals: str
    chunk_rows: int
    whole_rows: bool


@dataclass(frozen=True)
class CdcSettings:
    """What to read, from where and how; each field is an option of `format("scylla-cdc")`.

    start: "earliest" (the oldest change still in the log), "latest", a time (ISO 8601, UTC unless it has an offset), or
    "snapshot": the rows of the table, then all changes since.
    confidence: how far to stay behind the current time; a write that is not visible this long after its timestamp is
    missed.
    max_rows, max_time: the most that a batch takes, in log rows and in time.
    latency: "safe", or "low" to read rows at once and look again for late rows until they are `confidence` old.
    patience: how long a node may be away before the query fails.
    lossy: if the changes to read next are gone, continue with the remaining ones instead of failing
    (`failOnDataLoss=false`).
    bad_values: "stop" ends the query at a cell that cannot be read, with an error that names it; "problem" makes the
    cell null and describes it in the column `problem`.
    write_times: give also when each value was written, and when it expires.
    packed: all columns in one, as `replicate.sink` can take them: for queries that use no column.
    whole_rows: whether those who get the changes get all columns of `after`; if not, a snapshot sends a row that
    changed while it was read, without the columns that its change brings.
    signals, chunk_rows: a file that asks for ad-hoc snapshots (see `ad_hoc`), and about how many rows of one are read
    between two batches of the log.
    """

    access: Access
    table: str
    name: str
    images: Images
    rows: str = "changes"
    start: str = "earliest"
    confidence: timedelta = timedelta(seconds=30)
    latency: str = "safe"
    max_rows: int = 100_000
    max_time: timedelta = timedelta(hours=1)
    partitions: int = 2
    page_size: int = 5000
    patience: timedelta = timedelta(minutes=5)
    lossy: bool = False
    bad_values: str = "stop"
    write_times: bool = False
    packed: bool = False
    whole_rows: bool = True
    signals: str = ""
    chunk_rows: int = 20_000

    def start_micros(self) -> int | None:
        """The start time in microseconds since 1970; None for "earliest"."""
        if self.start == "earliest":
            return None
        if self.start in ("latest", "snapshot"):
            return now_micros() - self.confidence // MICROSECOND
        return micros(datetime.fromisoformat(self.start))


_REQUIRED = ("table", "hosts")
_TEXTS = ("user", "password", "local_dc", "consistency", "ca", "certificate", "key")
_FLAGS = ("tls", "verify_hostname")
_LOSS, _TIMES, _PACKED, _WHOLE = "failondataloss", "write_times", "packed", "whole_rows"
_DURATIONS = ("confidence", "max_time", "patience")
_COUNTS = ("max_rows", "partitions", "page_size", "chunk_rows")
_OWN = ("name", "before", "after", "rows", "start", "latency", "bad_values", "signals", _LOSS, _TIMES, _PACKED, _WHOLE)
KNOWN = (*_REQUIRED, *_OWN, *_TEXTS, *_FLAGS, *_DURATIONS, *_COUNTS)


def settings(options: Mapping[str, str]) -> CdcSettings:
    """Settings from Spark's options; raises PenstockError if one is missing, unknown or not valid."""
    texts = {key.lower(): value for key, value in options.items()}
    for key in texts:
        if key not in KNOWN:
            close = get_close_matches(key, KNOWN, 1)
            raise PenstockError(
                f"the change log source has no option {key!r}",
                next=f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(KNOWN)}",
            )
    for key in _REQUIRED:
        if not texts.get(key):
            raise PenstockError(f"the change log source needs the option {key!r}", next=_EXAMPLE)
    arguments: dict[str, object] = {key: duration(texts[key], name=key) for key in _DURATIONS if key in texts}
    arguments |= {key: _count(key, texts[key]) for key in _COUNTS if key in texts}
    arguments |= {key: texts[key] for key in ("start", "rows", "latency", "bad_values", "signals") if key in texts}
    arguments["lossy"] = _one_of(_LOSS, texts.get(_LOSS, "true").lower(), ("true", "false")) == "false"
    for key, default in ((_TIMES, "false"), (_PACKED, "false"), (_WHOLE, "true")):
        arguments[key] = _one_of(key, texts.get(key, default).lower(), ("true", "false")) == "true"
    reach: dict[str, Any] = {key: texts[key] for key in _TEXTS if key in texts}
    reach |= {key: _one_of(key, texts[key].lower(), ("true", "false")) == "true" for key in _FLAGS if key in texts}
    access = Access(texts["hosts"], **reach)
    access.endpoints()
    images = Images(
        _one_of("before", texts.get("before", "none"), IMAGES), _one_of("after", texts.get("after", "none"), IMAGES)
    )
    result = CdcSettings(access, texts["table"], texts.get("name") or texts["table"], images, **arguments)  # type: ignore[arg-type]
    _one_of("rows", result.rows, ("changes", "log"))
    _one_of("latency", result.latency, LATENCIES)
    _one_of("bad_values", result.bad_values, BAD_VALUES)
    _check_start(result)
    if result.rows == "log" and result.start == "snapshot":
        raise PenstockError(
            'start "snapshot" does not work with rows "log": a snapshot has no log rows',
            next='use another start, or .option("rows", "changes")',
        )
    if result.rows == "log" and result.write_times:
        raise PenstockError(
            'write_times does not work with rows "log": they are the columns of the log, unchanged',
            next='leave write_times out, or use .option("rows", "changes")',
        )
    if result.packed and (result.rows == "log" or result.bad_values == "problem"):
        raise PenstockError(
            'packed does not work with rows "log" and bad_values "problem", which need columns',
            next="leave packed out",
        )
    return result


def option_text(key: str, value: Any) -> str:
    """The value of an option as `settings` reads it."""
    return duration_text(duration(value, name=key)) if key in _DURATIONS else str(value)


_EXAMPLE = '.option("table", "shop.orders").option("hosts", "127.0.0.1:9042")'


def _count(key: str, text: str) -> int:
    number = whole(text, 1)
    if number is None:
        raise PenstockError(f"{key} is not a positive integer: {text!r}", next=f'write .option("{key}", "1000")')
    return number


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise PenstockError(f"{key} cannot be {value!r}", next=f"use one of {', '.join(allowed)}")
    return value


def _check_start(settings: CdcSettings) -> None:
    try:
        settings.start_micros()
    except (ValueError, TypeError):
        raise PenstockError(
            f"start cannot be {settings.start!r}",
            next='use "earliest", "latest", "snapshot" or a time such as "2026-01-31T12:00:00"',
        ) from None
