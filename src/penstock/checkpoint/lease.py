"""The lease of a checkpoint on a file system that has no locks: one driver holds it, on whatever machine.

It is a folder of numbered files beside the checkpoint; the newest belongs to the holder.

    counts.lease/7    {"host": "node-2", "pid": 4211, "beat": 381}

The holder writes its file again every `BEAT`. Who wants the lease watches the newest file: if that does not change for
`PATIENCE`, its holder is gone, and the next number can be taken; the file system lets one caller add it. No clock is
compared with that of another machine. A holder that was away for long finds a higher number, or that its own last beat
is older than `VALID`, and has lost the lease before another one takes it. Of two drivers that write the same batch for
a moment Spark lets one plan it, and sinks know it by its number.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from penstock.checkpoint.checkpoint_folder import CheckpointFolder
from penstock.errors import PenstockError
from penstock.process.waits import Wait

log = logging.getLogger(__name__)

BEAT = 5.0
"""Seconds between two writes of the holder's file."""
VALID = 20.0
"""Seconds for which a lease is held after its last beat began."""
PATIENCE = 30.0
"""Seconds without a beat after which a lease is taken from its holder; more than `VALID`."""
LOOK = 1.0
"""Seconds between two looks at another holder's file."""


class LeaseLost(PenstockError):
    """This process does not hold the lease any more: another one may run the pipeline."""


class Lease:
    """A lease that this process holds since `take`, for the files of a checkpoint at `where`."""

    def __init__(self, folder: CheckpointFolder, where: str) -> None:
        self._folder, self._where = folder, where
        self._number, self._beats, self._beaten = 0, 0, 0.0
        self._lost: PenstockError | None = None

    def take(self, pause: Callable[[float], bool]) -> bool:
        """Take the lease, if need be after its holder has not renewed it for `PATIENCE`.

        `pause` waits for some seconds, and returns True to give up, as this then returns False. Raises PenstockError if
        another process holds the lease.
        """
        number, known = self._newest()
        wait, since = Wait(f"the lease of {self._where}", PATIENCE), time.monotonic()
        while not known.get("released", number == 0) and time.monotonic() - since < PATIENCE:
            wait.failed(f"{_holder(known)} held it and may have ended", "wait, or stop that process if it runs")
            if pause(LOOK):
                return False
            if (number, known) != (now := self._newest()):
                raise self._in_use(now[1])
        self._number, self._beaten = number + 1, time.monotonic()
        if not self._folder.add(str(self._number), self._text()):
            raise self._in_use(self._newest()[1])
        for old in self._folder.numbers(""):
            if old < self._number:
                self._folder.remove(str(old))
        return True

    def require(self) -> None:
        """Raise LeaseLost if the lease is lost, also if this process could not renew it in time."""
        if self._lost is None and (age := time.monotonic() - self._beaten) > VALID:
            self._lost = self._ended(f"it could not be renewed for {age:.0f} s")
        if self._lost:
            raise self._lost

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lease in a thread while the code inside runs, then release it."""
        over = threading.Event()
        thread = threading.Thread(target=self._keep, args=[over], name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            # A file system that does not answer must not keep the process.
            thread.join(LOOK)
            if self._lost is None and not thread.is_alive():
                # Else the next run waits for a renewal that does not come.
                with suppress(Exception):
                    self.release()

    def release(self) -> None:
        """Let another process take the lease at once; raises LeaseLost if one has taken it."""
        self._renew(released=True)

    def holder(self) -> str | None:
        """The process that holds the lease, or did until it was killed; None if the last one has released it."""
        number, known = self._newest()
        return None if known.get("released", number == 0) else _holder(known)

    def _keep(self, over: threading.Event) -> None:
        while not over.wait(BEAT) and self._lost is None:
            try:
                self._renew()
            except LeaseLost as lost:
                self._lost = lost
            except Exception as error:
                # `require` says when it is too late.
                log.warning("the lease of %s was not renewed: %s", self._where, error)

    def _renew(self, *, released: bool = False) -> None:
        began = time.monotonic()
        number, known = self._newest()
        if number != self._number:
            why = f"{_holder(known)} took it" if number > self._number else "its file is gone"
            raise self._ended(why)
        self._beats += 1
        self._folder.write(str(number), self._text(released=released))
        self._beaten = began

    def _newest(self) -> tuple[int, dict[str, Any]]:
        """The number of the newest file, 0 without one, and what it says, nothing while it is written."""
        number = max(self._folder.numbers(""), default=0)
        try:
            known = json.loads(self._folder.read(str(number)) or "{}") if number else {}
        except ValueError:
            known = {}
        return number, known if isinstance(known, dict) else {}

    def _text(self, *, released: bool = False) -> str:
        about = {"host": socket.gethostname(), "pid": os.getpid(), "beat": self._beats}
        return json.dumps(about | {"released": True} if released else about)

    def _in_use(self, known: dict[str, Any]) -> PenstockError:
        return PenstockError(
            f"{_holder(known)} already runs this pipeline",
            where=f"checkpoint {self._where}",
            next="stop it there, or run with another --checkpoints folder",
        )

    def _ended(self, why: str) -> LeaseLost:
        return LeaseLost(
            f"this run has lost the lease of its checkpoint: {why}",
            where=f"checkpoint {self._where}",
            next="nothing if the pipeline runs elsewhere now; else start it again: it continues from its checkpoint",
        )


def _holder(known: dict[str, Any]) -> str:
    return f"process {known.get('pid', 'unknown')} on {known.get('host', 'an unknown machine')}"
