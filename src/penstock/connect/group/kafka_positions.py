"""The positions of a group's connectors in a compacted topic (`offset.storage.topic`).

The key of a record is JSON, ["<connector>", {"reads": "<table or topic>"}]; the value is the end of the last finished
batch as Spark's checkpoints have it, {"end": {...}}, or where a user lets it start, {"start": "..."}.
Signals are stored beside them (see `signal_watch`), by names that no table has. Kafka Connect has its own records in
this topic: those of ScyllaDB's connector say where to go on (see `connect_offsets`), others are left alone.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

from penstock.cdc.cdc_resume import sought
from penstock.checkpoint.checkpoint_folder import Local
from penstock.checkpoint.log import CheckpointLog
from penstock.connect.group.connect_offsets import KEYS, StoppedAt, Vnode, VnodeOffsets, sent_before, stop_of
from penstock.connect.worker.offsets import KeptInFolder
from penstock.kafka.compacted_topic import PATIENCE, CompactedTopic, Seen
from penstock.process.log_lines import quoted
from penstock.wire.producer.accumulator import RecordMetadata

log = logging.getLogger(__name__)
SIGNALS, ASKED = "signals", "signal "
"""What no table is named like: the list of signals, and the beginning of one that came over the REST API."""
Place = tuple[str, str]
"""A connector, and what one of its queries reads."""


class KafkaPositions:
    """The topic, with the newest position of each place."""

    def __init__(self, topic: Callable[[Seen], CompactedTopic]) -> None:
        self._topic = topic(self._seen)
        self._known: dict[Place, dict[str, Any]] = {}
        self._of_connect = defaultdict[str, VnodeOffsets](VnodeOffsets)
        self._others: set[str] = set()
        self._lock = threading.Lock()
        self._sent: dict[Place, Future[RecordMetadata]] = {}

    def start(self) -> None:
        """Read all, and follow the topic from now on."""
        self._topic.start()

    def close(self) -> None:
        self._topic.close()

    def of(self, connector: str) -> dict[str, dict[str, Any]]:
        """The positions of a connector, by what it reads."""
        with self._lock:
            return {part: position for (name, part), position in self._known.items() if name == connector}

    def refresh(self, patience: timedelta = PATIENCE) -> None:
        """Wait until all is known that any worker has written so far; raises what `CompactedTopic.refresh` does."""
        self._topic.refresh(patience)

    def of_connect(self, place: Place) -> dict[Vnode, int]:
        """What Kafka Connect's records say of a table (see `connect_offsets`)."""
        with self._lock:
            offsets = self._of_connect.get(place[0])
            return offsets.of(place[1]) if offsets else {}

    def forget_connect(self, connector: str, part: str | None = None) -> None:
        """Remove Kafka Connect's records of a connector, or of one of its tables."""
        with self._lock:
            offsets = self._of_connect.get(connector)
            keys = offsets.keys(part) if offsets else []
        self._topic.put_all(dict.fromkeys(keys))

    def put(self, place: Place, position: dict[str, Any] | None) -> None:
        """Set or remove a position, for all workers to see."""
        self._topic.put(_key(place), None if position is None else json.dumps(position).encode())

    def reached(self, place: Place, end: Any) -> None:
        """A batch has ended there: written in the background."""
        self._sent[place] = self._topic.send(_key(place), json.dumps({"end": end}).encode())

    def is_settled(self, connector: str, parts: Set[str]) -> bool:
        """Whether what was reached there is written, or has failed: another worker may go on from it then."""
        under_way = {part: sent for part in parts if (sent := self._sent.get((connector, part))) is not None}
        if not all(sent.done() for sent in under_way.values()):
            return False
        for part, sent in under_way.items():
            self._sent.pop((connector, part), None)
            if not sent.cancelled() and (error := sent.exception()):
                log.warning(
                    "connector %s: the position in %s was not written, so its last batch will be repeated: %s",
                    connector,
                    part,
                    error,
                )
        return True

    def get(self, place: Place) -> dict[str, Any]:
        """The position of a place; empty if it has none."""
        with self._lock:
            return self._known.get(place, {})

    def _seen(self, key: str, value: bytes | None, offset: int) -> None:
        try:
            name, about = json.loads(key)
            position = None if value is None else json.loads(value)
            if not isinstance(name, str) or not all(
                isinstance(part, dict) for part in (about, {} if position is None else position)
            ):
                raise ValueError("it is not of the form of Kafka Connect's positions")
            if about.keys() >= KEYS:
                vnode, micros = Vnode.of(about), None if position is None else sent_before(position)
                with self._lock:
                    self._of_connect[name].put(vnode, key, micros)
                return
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            log.warning("ignored the record %s of the positions: %s", quoted(key), quoted(error))
            return
        with self._lock:
            if "reads" in about:
                self._put((name, str(about["reads"])), position)
            elif name not in self._others:
                self._others.add(name)
                log.info("left alone the positions of connector %s: they are not Penstock's", quoted(name))

    def _put(self, place: Place, position: dict[str, Any] | None) -> None:
        if position is None:
            self._known.pop(place, None)
        else:
            self._known[place] = position


class KeptInKafka:
    """The positions of one connector."""

    def __init__(self, positions: KafkaPositions, connector: str) -> None:
        self._positions, self._connector = positions, connector

    def begun(self) -> Set[str]:
        return {part for part, position in self._positions.of(self._connector).items() if "end" in position}

    def end(self, part: str) -> dict[str, Any] | None:
        end: dict[str, Any] | None = self._positions.of(self._connector).get(part, {}).get("end")
        return end

    def starts(self) -> dict[str, str]:
        positions = self._positions.of(self._connector)
        return {part: str(position["start"]) for part, position in positions.items() if "start" in position}

    def set_start(self, part: str, start: str) -> None:
        self._positions.put((self._connector, part), {"start": start})

    def forget(self, part: str) -> None:
        self._positions.forget_connect(self._connector, part)
        self._positions.put((self._connector, part), None)

    def forget_all(self) -> None:
        self._positions.forget_connect(self._connector)
        for part in self._positions.of(self._connector):
            self._positions.put((self._connector, part), None)

    def signals(self) -> dict[str, Any] | None:
        signals: dict[str, Any] | None = self._positions.get((self._connector, SIGNALS)).get(SIGNALS)
        return signals

    def keep_signals(self, about: Mapping[str, Any]) -> None:
        self._positions.put((self._connector, SIGNALS), {SIGNALS: about})

    def asked(self) -> dict[str, dict[str, Any]]:
        positions = self._positions.of(self._connector)
        asked = [(signal["at"], part, signal[ASKED]) for part, signal in positions.items() if part.startswith(ASKED)]
        return {part.removeprefix(ASKED): about for _, part, about in sorted(asked, key=lambda signal: signal[:2])}

    def ask(self, id: str, about: Mapping[str, Any]) -> None:
        self._positions.put((self._connector, f"{ASKED}{id}"), {ASKED: about, "at": time.time_ns()})

    def forget_asked(self, id: str) -> None:
        self._positions.put((self._connector, f"{ASKED}{id}"), None)

    def prepare(self, folder: Path, parts: Set[str]) -> None:
        """Make the checkpoints with which Spark's queries go on where others ended."""
        for part in parts:
            if (end := self.end(part)) is not None:
                CheckpointLog(Local(folder / part)).add((json.dumps(end, separators=(",", ":")),))

    def refresh(self) -> None:
        """Wait until what other workers have written is known; raises what `CompactedTopic.refresh` does."""
        self._positions.refresh()

    def go_on(self, part: str, vnodes: Callable[[int], Set[int] | None]) -> StoppedAt | None:
        """Go on in a table where Kafka Connect's worker has stopped, unless there is a position of our own.

        `vnodes` are those of a generation of its log (see `stop_of`). Returns where that is, None if it does not.
        """
        place = self._connector, part
        if self._positions.get(place):
            return None
        if stop := stop_of(self._positions.of_connect(place), vnodes):
            self._positions.put(place, {"end": sought(stop.begin, required=stop.sent)})
        return stop

    def adopt(self, folder: Path) -> list[str]:
        """Take over the positions that a worker without a group has written to a folder; returns of what."""
        local, known = KeptInFolder(folder), self._positions.of(self._connector)
        if SIGNALS not in known and (signals := local.signals()):
            self.keep_signals(signals)
        starts, taken = local.starts(), []
        for part in sorted(local.begun() | set(starts)):
            if part in known:
                continue
            end = local.end(part)
            if end is None and part not in starts:
                continue
            self._positions.put((self._connector, part), {"start": starts[part]} if end is None else {"end": end})
            taken.append(part)
        return taken


def _key(place: Place) -> str:
    return json.dumps([place[0], {"reads": place[1]}], ensure_ascii=False)
