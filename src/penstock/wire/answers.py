"""What a broker's answer, or its absence, means for a batch: it is done, goes again, is cut or numbered anew, or fails.

The rules are those of Java's client (Sender.completeBatch and TransactionManager.canRetry, 4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock.native import Array
from penstock.wire.errors import (
    InvalidProducerEpoch,
    KafkaError,
    MessageTooLarge,
    OutOfOrderSequenceNumber,
    RecordListTooLarge,
    UnknownProducerId,
    error_of,
)
from penstock.wire.lanes import Batch, Lane, Outcome, Settle
from penstock.wire.options import Delivery
from penstock.wire.settlement import Settlement
from penstock.wire.split import halves, parted, sizes
from penstock.wire.tables import ranges

DUPLICATE_SEQUENCE_NUMBER = 46


class Answers:
    """Judges the batches of one producer; `learn` is given the topics whose leaders are to be looked up again."""

    def __init__(
        self, delivery: Delivery, settlement: Settlement, learn: Callable[[str], None], *, transactional: bool
    ) -> None:
        self._delivery, self._settlement, self._learn = delivery, settlement, learn
        self._transactional = transactional

    def judge(self, lane: Lane, one: Batch, result: dict[str, Any] | None) -> None:
        """`result` is the answer's part about the batch's partition, if there is one."""
        where: dict[str, Any] = {"topic": lane.topic, "partition": lane.partition}
        if result is None:
            self.failed(lane, one, error_of(-1)(detail="the answer skips it", **where))
        elif result["error_code"] in (0, DUPLICATE_SEQUENCE_NUMBER):
            self._settlement.done(lane, one, Outcome(result["base_offset"], result["log_append_time_ms"], None))
        else:
            said = result.get("error_message") or ""
            error = error_of(result["error_code"])(detail=said, **where)
            named = [record["batch_index"] for record in result.get("record_errors", ())]
            if 0 < len(named) < one.count and not error.retriable and not self._transactional:
                self._some_refused(lane, one, error, named)
            else:
                self.failed(lane, one, error)

    def failed(self, lane: Lane, one: Batch, error: KafkaError) -> None:
        """Send again what may succeed; where the broker's numbers are not ours, first start new ones."""
        one.problem = error
        if isinstance(error, OutOfOrderSequenceNumber | UnknownProducerId) and self._renumbers(lane, one):
            if lane.is_first(one):
                lane.wants_identity = True
                lane.backoff.failed()
            lane.again(one)
            return
        if isinstance(error, MessageTooLarge | RecordListTooLarge):
            self._too_large(lane, one, error)
            return
        if not error.retriable:
            # With this epoch all that follows would fail alike.
            lane.wants_identity |= isinstance(error, InvalidProducerEpoch) and not self._transactional
            self._settlement.fail(lane, one, error)
            return
        lane.again(one)
        lane.backoff.failed()
        if error.refresh_metadata:
            self._learn(lane.topic)

    def _renumbers(self, lane: Lane, one: Batch) -> bool:
        """Whether a batch behind a gap may go again: always, but a transaction whose gap it meets first has failed."""
        return self._delivery.idempotent and not (self._transactional and lane.is_first(one))

    def _some_refused(self, lane: Lane, one: Batch, error: KafkaError, named: Sequence[int]) -> None:
        """Fail the records for which the broker has refused a batch, and send the others again: it stored none."""
        bad = np.unique(named)
        rows = [np.setdiff1d(np.arange(one.count), bad), bad]
        parts = lane.split(one, parted(one.data, rows, self._delivery.compression_level))
        for part, of_part in zip(parts, rows, strict=True):
            part.settle = partial(_spread, one.settle, of_part + one.first, part.first)
        self._settlement.fail(lane, parts[1], error)

    def _too_large(self, lane: Lane, one: Batch, error: KafkaError) -> None:
        """Send the records in smaller batches; one that is alone in its batch fails."""
        if one.count > 1:
            lane.split(one, halves(one.data, self._delivery.compression_level))
        else:
            detail = "; ".join(filter(None, (sizes(one.data), error.detail)))
            self._settlement.fail(lane, one, type(error)(detail, topic=lane.topic, partition=lane.partition))


def _spread(settle: Settle, numbers: Array, first: int, outcome: Outcome, part: slice) -> None:
    """Tell the end of a batch that has the records of these numbers of another, as that of runs of that one's records.

    The batch's own records are counted from `first`.
    """
    for start, last in ranges(numbers[part.start - first : part.stop - first]):
        settle(outcome, slice(start, last + 1))
        if outcome.offset >= 0:
            outcome = outcome._replace(offset=outcome.offset + last + 1 - start)
