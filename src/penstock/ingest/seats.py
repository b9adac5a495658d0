"""Where workers leave their reports: each worker can report for all, and counts outlive the worker that counted."""

from __future__ import annotations

import asyncio

import msgspec

from penstock.ingest.board import Board
from penstock.ingest.ingest_metrics import Family, Report, Reporter, deaths

TELL = 0.5
"""Seconds between two reports. What a worker counted since its last report is lost when it is killed."""
ROOM, ROOM_OF_TOPIC = 128 << 10, 16 << 10
"""Most bytes of a report: a metric takes 50 to 300 bytes, and a topic has up to 30 metrics, with the longest names."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Report).decode


class Seats:
    """Created before the workers; each then takes its own seat."""

    def __init__(self, count: int, topics: int) -> None:
        self._count, self._board = count, Board(count, ROOM + topics * ROOM_OF_TOPIC)

    def died(self, number: int) -> None:
        """Keep the counts of a worker that died for the next one, and count its death."""
        report = self._read(number) or Report(0.0, [], None, 0)
        self.write(number, report.left().over([Family.of(deaths(1))]))

    def write(self, number: int, report: Report) -> None:
        self._board.write(number, _encode(report))

    def counted(self, number: int) -> list[Family]:
        report = self._read(number)
        return report.families if report else []

    def all(self) -> list[Report]:
        return [report for number in range(self._count) if (report := self._read(number))]

    def _read(self, number: int) -> Report | None:
        text = self._board.read(number)
        return _decode(text) if text else None


class Alone:
    """The only process of a server."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def reports(self) -> list[Report]:
        return [self._reporter.report()]

    async def keep_telling(self) -> None:
        """Does nothing: there is no other process."""


class Seat:
    """A worker's seat; it continues the counts of the workers before it."""

    def __init__(self, seats: Seats, number: int, reporter: Reporter) -> None:
        self._seats, self._number, self._reporter = seats, number, reporter
        self._before = seats.counted(number)

    def reports(self) -> list[Report]:
        """The reports of all workers; this worker's as of now."""
        self.tell()
        return self._seats.all()

    def tell(self) -> None:
        self._seats.write(self._number, self._reporter.report().over(self._before))

    async def keep_telling(self) -> None:
        """Report until cancelled."""
        try:
            while True:
                self.tell()
                await asyncio.sleep(TELL)
        finally:
            self.tell()
