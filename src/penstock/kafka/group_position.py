"""Mirrors how far a query has read to a consumer group, for tools that show the lag of groups; a query never reads it.

A query's position is in its checkpoint. Spark asks a source for new offsets with the end of the last finished batch,
so that is what is committed, in the background. A commit that fails is logged and repeated; it never stops the query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from datetime import timedelta

from penstock.errors import PenstockError
from penstock.kafka.kafka_settings import KafkaSettings
from penstock.kafka.topic_reader import TopicReader
from penstock.wire.admin import Admin
from penstock.wire.errors import KafkaError

log = logging.getLogger(__name__)
PATIENCE = timedelta(seconds=10)
"""How long a commit is tried."""
AGAIN = 30.0
"""Seconds after which a failed commit is repeated although no batch has finished since."""
FRESH = 3600.0
"""Seconds after which a position that stays is committed again: a broker forgets it after 7 days, unless it is set to
less (`offsets.retention.minutes`), and lag tools would lose a query that is idle for so long."""
QUIET = 600.0
"""Seconds between warnings with the same text."""
NEVER = float("-inf")


class GroupPosition:
    """The position of one query in the group of its settings."""

    def __init__(self, settings: KafkaSettings, topic: TopicReader) -> None:
        self._settings, self._topic = settings, topic
        self._wanted: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._work: Future[None] | None = None
        self._failed_at = self._warned_at = self._committed_at = NEVER
        self._warning = ""
        self._admin: Admin | None = None

    def finished(self, offsets: Mapping[int, int]) -> None:
        """The batches up to these offsets are finished: commit them in the background, unless they are committed."""
        if dict(offsets) != self._wanted:
            self._wanted, self._failed_at = dict(offsets), NEVER
        self._start()

    def wait(self, seconds: float) -> None:
        """Wait until the newest offsets are committed or that fails, but not longer than this."""
        until = time.monotonic() + seconds
        while self._start() and self._work and time.monotonic() < until:
            wait([self._work], max(0.0, until - time.monotonic()))

    def _start(self) -> bool:
        """Whether a commit runs now: one is started if there is something to commit, and it did not fail just now."""
        if self._work is not None and not self._work.done():
            return True
        now = time.monotonic()
        is_known = self._wanted == self._committed and now < self._committed_at + FRESH
        if not self._wanted or is_known or now < self._failed_at + AGAIN:
            return False
        self._work = self._topic.start(self._commit())
        return True

    async def _commit(self) -> None:
        """Commit until the newest offsets are, or it fails."""
        offsets: dict[int, int] | None = None
        while offsets != self._wanted:
            offsets = self._wanted
            try:
                await self._client().groups.commit(
                    self._settings.group, {(self._settings.topic, p): at for p, at in offsets.items()}
                )
            except (KafkaError, PenstockError) as error:
                self._failed(error)
                return
            self._committed, self._committed_at = offsets, time.monotonic()

    def _client(self) -> Admin:
        if self._admin is None:
            security = self._settings.security
            self._admin = Admin(
                self._settings.servers, patience=PATIENCE, tls=security.tls(), authenticate=security.authenticate()
            )
        return self._admin

    def _failed(self, error: KafkaError | PenstockError) -> None:
        now = time.monotonic()
        self._failed_at = now
        text = f"{error}. Next: {error.next}" if isinstance(error, KafkaError) and error.next else str(error)
        if text != self._warning or now > self._warned_at + QUIET:
            self._warning, self._warned_at = text, now
            log.warning("%s was not committed, and is tried again; the query goes on: %s", self._what, text)

    @property
    def _what(self) -> str:
        return f"the position in {self._settings.topic} of the group {self._settings.group}"
