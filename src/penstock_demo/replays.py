"""Which repeated records are a replay: what at-least-once delivery may repeat after a break, and nothing more.

An interrupted batch is written again as a whole. In each Kafka partition its records were the last ones before the
break, so a replay repeats, without a gap, the records from some position up to the break; records that the second run
writes for the first time may be between the repeated ones. Anything else is a duplicate.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def replays(places: Sequence[Hashable], appended: Sequence[int], breaks: Sequence[int]) -> dict[int, int]:
    """The indexes of replayed records in a Kafka partition, in offset order, each with the start of its replay.

    `places` says which expected record each one is, `appended` when Kafka took it, `breaks` when a part was killed.
    """
    if not breaks:
        return {}
    first_break = min(breaks)
    found: dict[int, int] = {}
    for run in _runs(places):
        start, originals = min(run), sorted(run.values())
        without_gap = originals[-1] - originals[0] == len(originals) - 1
        if without_gap and appended[start] >= first_break:
            found |= dict.fromkeys(run, start)
    return found


def _runs(places: Sequence[Hashable]) -> list[dict[int, int]]:
    """Repeats, as index -> index of the previous delivery; a repeat of a record of the same run starts a new run."""
    latest: dict[Hashable, int] = {}
    runs: list[dict[int, int]] = []
    start = 0
    for index, place in enumerate(places):
        before = latest.get(place)
        if before is not None:
            if not runs or before >= start:
                runs.append({})
                start = index
            runs[-1][index] = before
        latest[place] = index
    return runs
