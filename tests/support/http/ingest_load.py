"""Callers of a server of `penstock ingest`, in threads."""

from __future__ import annotations

import itertools
import threading

import requests
from ingest_server import Server
from waiting import PATIENCE

CALLERS, BATCH = 4, 100


class Load:
    """Callers that send batches of numbered events, one after the other, until they are stopped.

    One whose connection breaks ends, or goes on with the next batch if it is to come `again`.
    """

    def __init__(self, server: Server, topic: str, *, again: bool = False) -> None:
        self.sent: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.refused: list[int] = []
        self._again = again
        self._url, self._stop = f"{server.url}/events/{topic}", threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(caller,)) for caller in range(CALLERS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self, caller: int) -> None:
        with requests.Session() as session:
            for number in itertools.count():
                if self._stop.is_set():
                    return
                events = [b'{"caller":%d,"n":%d}' % (caller, number * BATCH + n) for n in range(BATCH)]
                self.sent += events
                try:
                    answer = session.post(
                        self._url,
                        b"\n".join(events),
                        headers={"Content-Type": "application/x-ndjson"},
                        timeout=PATIENCE,
                    )
                except requests.ConnectionError:
                    if not self._again:
                        return
                    self._stop.wait(0.05)
                    continue
                if answer.status_code in (200, 202):
                    assert answer.json() == {"accepted": BATCH}
                    self.acknowledged += events
                else:
                    self.refused.append(answer.status_code)
                    assert answer.headers["Retry-After"]
                    self._stop.wait(0.2)
