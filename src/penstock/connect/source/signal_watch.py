"""Looks for signals to a running source connector, and passes them to its queries.

Signals are taken from the REST API, a topic and a table, checked, and stored in a list, with the cursors of the
channels in the same record: so each is taken once, also if the worker is killed in between. The queries read the list
from a file (`cdc.ad_hoc`), and each keeps in its own position which signals it has taken. What all have taken leaves
the list. A signal that cannot be acted on is reported in the log, and changes nothing.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.cdc.ad_hoc import AdHoc
from penstock.cdc.generations import FIRST_TOKEN
from penstock.connect.source import database
from penstock.connect.source.signal_channels import Arrived, Channel, SignalTable, SignalTopic
from penstock.connect.source.signal_format import LOG, LONGEST_FILTER, BadSignal, Signal, signal_of
from penstock.connect.source.task import Setup
from penstock.connect.worker.offsets import KeptPositions
from penstock.errors import PenstockError, first_line
from penstock.process.log_lines import quoted

log = logging.getLogger(__name__)
# What a user has asked for is reported also without --verbose, so these lines are warnings.

LOOK = 0.5
"""Seconds between two looks for what the REST API got."""
MOST_KEPT = 64 << 10
"""Bytes of signals that queries have not taken yet; beyond, further ones wait where they are."""
PREFIX = "signal.consumer."
ELSEWHERE = ("file", "jmx", "in-process")
"""Debezium's other channels, which are not here."""


def channels(setup: Setup) -> list[Channel]:
    """The channels that a configuration enables."""
    values, enabled_channels = setup.values, list[Channel]()
    enabled = values["signal.enabled.channels"]
    if table := values["signal.data.collection"] if "source" in enabled else None:
        enabled_channels.append(SignalTable(values, table))
    if "kafka" in enabled:
        servers = values["signal.kafka.bootstrap.servers"] or setup.servers
        topic = values["signal.kafka.topic"] or f"{values['topic.prefix']}-signal"
        own = {name.removeprefix(PREFIX): text for name, text in setup.config.items() if name.startswith(PREFIX)}
        enabled_channels.append(SignalTopic(servers, topic, values["topic.prefix"], {**setup.producer, **own}))
    return enabled_channels


class SignalList:
    """The signals that not all queries have taken yet, and the cursors of the channels, as they are stored."""

    def __init__(self, positions: KeptPositions) -> None:
        self._positions = positions
        about = positions.signals() or {}
        self.signals: list[dict[str, Any]] = list(about.get("signals", ()))
        self.cursors: dict[str, Any] = dict(about.get("cursors", {}))
        self._stored = self._text()

    @property
    def is_full(self) -> bool:
        return len(json.dumps(self.signals)) > MOST_KEPT

    def add(self, signal: Signal, ask: str) -> None:
        """Add a signal, from the request `ask` of the REST API if that is not ""."""
        if ask and any(entry.get("ask") == ask for entry in self.signals):
            return
        # Also greater than all numbers before the list was lost or begun again.
        number = max(time.time_ns() // 1000, *(entry["number"] + 1 for entry in self.signals), 0)
        added = {"number": number, "id": signal.id, "type": signal.type, "tables": dict(signal.tables)}
        self.signals.append(added | ({"ask": ask} if ask else {}))

    def forget_taken(self, seen: Mapping[str, int]) -> None:
        """Remove the signals that each of these tables has taken, by the number of the last one it has."""
        self.signals = [
            signal
            for signal in self.signals
            if any(seen.get(table, signal["number"]) < signal["number"] for table in signal["tables"])
        ]

    def store(self) -> None:
        """Keep it, if it has changed; raises PenstockError."""
        if (text := self._text()) != self._stored:
            self._positions.keep_signals(json.loads(text))
            self._stored = text

    def _text(self) -> str:
        return json.dumps({"signals": self.signals, "cursors": self.cursors})


class SignalWatch:
    """A thread that looks for signals until `stop`; `tables` gives what the connector reads now."""

    def __init__(self, setup: Setup, positions: KeptPositions, tables: Callable[[], Sequence[str]]) -> None:
        self._setup, self._positions, self._tables = setup, positions, tables
        self._every = setup.values["signal.poll.interval.ms"] / 1000
        self._said: dict[str, str] = {}
        self._running: dict[str, str] = {}
        self._looked = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{setup.connector}-signals", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        listed, sources, due = None, channels(self._setup), 0.0
        if other := [name for name in self._setup.values["signal.enabled.channels"] if name in ELSEWHERE]:
            log.warning("connector %s: no signals come from %s here", self._setup.connector, ", ".join(other))
        while not self._stop.is_set():
            try:
                listed = listed or SignalList(self._positions)
                self._take_asked(listed)
                if time.monotonic() >= due:
                    due = time.monotonic() + self._every
                    for channel in sources:
                        self._take(listed, channel)
                self._forget_taken(listed)
            except Exception as error:
                # What was not stored is read again.
                listed = None
                self._say("", f"signals are looked for again: {_text(error)}")
            else:
                self._said.pop("", None)
            self._stop.wait(LOOK)

    def _take_asked(self, listed: SignalList) -> None:
        for ask, about in self._positions.asked().items():
            if listed.is_full:
                return
            self._accept(listed, Arrived("the REST API", about), ask)
            listed.store()
            self._positions.forget_asked(ask)

    def _take(self, listed: SignalList, channel: Channel) -> None:
        if listed.is_full:
            return
        try:
            arrived, cursor = channel.new(listed.cursors.get(channel.name))
        except PenstockError as error:
            self._say(channel.name, f"no signals are read: {error}")
            return
        self._said.pop(channel.name, None)
        for signal in arrived:
            self._accept(listed, signal)
        listed.cursors[channel.name] = cursor
        listed.store()

    def _accept(self, listed: SignalList, arrived: Arrived, ask: str = "") -> None:
        """Add a signal to the list, if it can be acted on."""
        name = self._setup.connector
        try:
            if arrived.problem or arrived.about is None:
                raise arrived.problem or BadSignal("a signal is empty", where=arrived.where)
            signal = signal_of(arrived.about, self._tables(), self._refused, arrived.where)
        except BadSignal as error:
            log.warning("connector %s: ignored a signal: %s", name, error)
            return
        if signal.type == LOG:
            log.warning("connector %s: signal %s: %s", name, quoted(signal.id), quoted(signal.message, LONGEST_FILTER))
            return
        tables = ", ".join(signal.tables)
        log.warning("connector %s: signal %s, %s of %s", name, quoted(signal.id), signal.type, tables)
        listed.add(signal, ask)

    def _refused(self, table: str, filter: str) -> str | None:
        return database.filter_refused(self._setup.values, table, filter)

    def _forget_taken(self, listed: SignalList) -> None:
        """Remove from the list what all queries have taken, and tell of snapshots that begin or end."""
        if self._looked and not listed.signals and not self._running:
            return
        ends = {table: end for table in self._tables() if (end := self._positions.end(table)) is not None}
        known = {table: AdHoc.of(end) for table, end in ends.items()}
        waiting = dict.fromkeys(self._tables(), 0) | {table: snapshot.seen for table, snapshot in known.items()}
        listed.forget_taken(waiting)
        listed.store()
        for table, snapshot in known.items():
            self._tell(table, snapshot.queue[0].id if snapshot.queue else "")
        self._looked = True

    def _tell(self, table: str, id: str) -> None:
        before = self._running.get(table, "")
        if before == id:
            return
        if before:
            self._tell_snapshot(table, before, "ended")
            del self._running[table]
        if id:
            self._tell_snapshot(table, id, "begun")
            self._running[table] = id

    def _tell_snapshot(self, table: str, id: str, what: str) -> None:
        said = "connector %s: the incremental snapshot of %s for signal %s has %s"
        log.warning(said, self._setup.connector, table, quoted(id), what)

    def _say(self, what: str, text: str) -> None:
        """Warn, unless that was the last warning about it."""
        if self._said.get(what) != text:
            self._said[what] = text
            log.warning("connector %s: %s", self._setup.connector, text)


def progress(positions: KeptPositions, tables: Sequence[str]) -> list[dict[str, Any]]:
    """The snapshots that run or wait, by table; `done` is the part of the token ring that was read."""
    rows = []
    for table in tables:
        snapshot = AdHoc.of(positions.end(table) or {})
        for place, wanted in enumerate(snapshot.queue):
            done = (snapshot.token - FIRST_TOKEN) / 2**64 if place == 0 else 0.0
            rows.append(
                {
                    "table": table,
                    "id": wanted.id,
                    "filter": wanted.filter,
                    "paused": snapshot.paused,
                    "done": round(done, 4),
                }
            )
    return rows


def _text(error: Exception) -> str:
    return first_line(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {first_line(error)}"
