"""What demos of the shop share: its load, how they find a rate for it, and the breaks of its tables."""

from __future__ import annotations

import time
from typing import TypeVar

from penstock_demo import shop
from penstock_demo.load import Status
from penstock_demo.node import connect, publish
from penstock_demo.stage import AUTO, Stage

RATES = (250, 500, 1000, 2000, 4000, 8000)
TRIAL = 4.0
"""Seconds at each of these rates: the window of the view's numbers, and a second until the load reports the rate."""
HOLDS = 0.9
"""The share of a rate that must be written, for the rate to be held."""
SHARE = 0.8
"""The share of what is held at which delays stay short."""

V = TypeVar("V")
"""The verdict of a demo."""


class ShopStage(Stage[Status, V]):
    """A demo whose load writes to the shop."""

    load_module, load_status = "penstock_demo.load", Status
    tables = tuple(shop.TABLES)

    def _load_arguments(self) -> list[str]:
        return ["--hosts", self._running.cql, *super()._load_arguments()]

    def _chosen_rate(self) -> str:
        """The user's rate; else it doubles until writes or events fall behind, and most of what was held is chosen."""
        if self._options.rate != AUTO:
            return self._options.rate
        self._view.say("finding the rate that this machine holds: it doubles until writes or events fall behind")
        held = RATES[0] / 2
        for rate in RATES:
            self._phase(f"trying {rate} writes/s")
            self._load.pace(str(rate))
            self._pass_time(TRIAL)
            if self._board.delay_p50 > self.warm_delay:
                break
            held = max(held, min(rate, self._board.writes_per_s))
            if held < HOLDS * rate:
                break
        chosen = f"{SHARE * held:.0f}"
        self._view.say(f"{chosen} writes/s are {SHARE:.0%} of what this machine holds; --rate chooses another rate")
        self._load.pace(chosen)
        self._pass_time(TRIAL)
        return chosen

    def _break(self, part: str, number: int) -> None:
        """Add a column ("alter"), publish new streams ("generation"), or kill the part."""
        if part not in ("alter", "generation"):
            super()._break(part, number)
            return
        self._phase("altering a table" if part == "alter" else "publishing new streams")
        self._breaks.append(time.time_ns() // 1000)
        with connect(self._running.cql) as session:
            if part == "alter":
                session.execute(said := shop.add_column(number))
            else:
                said = f"published streams in use from {publish(session):%H:%M:%S} UTC"
        self._view.say(said)
        self._phase("running after the break")
