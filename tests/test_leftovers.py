"""A module that leaves something running fails; what belongs to the process does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import leftovers
import pytest
from confluent_kafka import Producer


@contextmanager
def thread(name: str) -> Iterator[None]:
    """A thread that runs until the end of the block."""
    ended = threading.Event()
    made = threading.Thread(target=ended.wait, name=name)
    made.start()
    try:
        yield
    finally:
        ended.set()
        made.join()


def test_a_thread_that_nobody_stopped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "ENDING", 0)
    before = leftovers.running()
    with thread("ours"), pytest.raises(AssertionError, match="no end of ours, which nobody stopped"):
        leftovers.require_none(before)
    leftovers.require_none(before)


def test_a_client_of_librdkafka_is_found_until_it_is_gone() -> None:
    before = leftovers.running()
    producer = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    assert list(leftovers.running() - before) == ["a client of librdkafka"]
    del producer
    leftovers.require_none(before)


def test_threads_of_the_process_may_stay() -> None:
    before = leftovers.running()
    with thread("replica of topic users"):
        leftovers.require_none(before)
