"""Memory shared by processes: each holds a slot alone, also after a kill; slots come and go."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from waiting import PATIENCE

from penstock.native import shared_memory

# Spark's driver has threads; the forked processes do not use their locks.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.usefixtures("sharing"),
]

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def fork() -> Iterator[Callable[..., Any]]:
    processes = []

    def start(target: Callable[..., None], *given: Any) -> Any:
        processes.append(FORK.Process(target=target, args=given))
        processes[-1].start()
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.join()


def add(name: str, times: int) -> None:
    """Each time one more word: the sum of the words before, plus one."""
    for _ in range(times):
        with shared_memory.held(name) as slot:
            assert slot
            count = int(slot.notes[0])
            array = slot.longer(1, slot.array(1), count, count + 1)
            array[count] = array[:count].sum() % 1_000_003 + 1
            slot.notes[0] = count + 1


def hold(name: str, told: Any) -> None:
    """Holds the slot until it is killed."""
    with shared_memory.held(name) as slot:
        assert slot
        slot.notes[0] = 7
        told.send(None)
        signal.pause()


def test_nothing_is_lost_between_processes(fork: Callable[..., Any]) -> None:
    for process in [fork(add, name, 300) for name in ("a", "b", "a", "b")]:
        process.join(PATIENCE)
        assert process.exitcode == 0
    expected: list[int] = []
    for _ in range(600):
        expected.append(sum(expected) % 1_000_003 + 1)
    for name in ("a", "b"):
        with shared_memory.held(name) as slot:
            assert slot and slot.array(1).tolist() == expected


def test_a_process_that_is_killed_lets_go(fork: Callable[..., Any]) -> None:
    here, there = FORK.Pipe()
    holder = fork(hold, "a", there)
    here.recv()
    waiting = fork(add, "a", 1)
    os.kill(holder.pid, signal.SIGKILL)
    waiting.join(PATIENCE)
    assert waiting.exitcode == 0
    with shared_memory.held("a") as slot:
        assert slot and slot.notes[0] == 8


def test_an_array_begins_with_zeros_and_keeps_what_it_has_when_it_grows() -> None:
    with shared_memory.held("a") as slot:
        assert slot
        slot.zeros(0, 5000)[:] = 1
        assert slot.longer(0, slot.array(0), 5000, 9000).sum() == 5000
        assert len(slot.array(0)) == 9000 and not slot.zeros(0, 6000).any() and len(slot.array(0)) == 6000
        with pytest.raises(MemoryError, match="use more buckets"):
            slot.longer(0, slot.array(0), 6000, shared_memory.LONGEST + 1)


def test_a_slot_nobody_asks_for_goes_to_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(shared_memory.SLOTS):
        with shared_memory.held(str(number)) as slot:
            assert slot
            slot.zeros(0, 100)[:] = number
    with shared_memory.held("more") as none:
        assert none is None
    monkeypatch.setattr(shared_memory, "IDLE", -10)
    with shared_memory.held("more") as slot:
        assert slot and not slot.notes.any() and len(slot.array(0)) == 0 and not slot.zeros(0, 100).any()
    with shared_memory.held("5") as slot:  # its slot was reused
        assert slot and len(slot.array(0)) == 0


def test_memory_of_what_nobody_asks_for_is_given_back(
    monkeypatch: pytest.MonkeyPatch, fork: Callable[..., Any]
) -> None:
    here, there = FORK.Pipe()
    with shared_memory.held("idle") as slot:
        assert slot
        slot.zeros(1, 1000)[:] = 3
        idle = slot
    fork(hold, "held", there)
    here.recv()
    shared_memory.sweep()
    assert idle.array(1).sum() == 3000
    monkeypatch.setattr(shared_memory, "IDLE", -10)
    shared_memory.sweep()
    assert len(idle.array(1)) == 0
    assert memory_notes("held") == 7


def memory_notes(name: str) -> int:
    memory, words = shared_memory._MEMORY, shared_memory._words_of(name)
    assert memory
    return int(memory.heads[(memory.heads[:, :2] == words).all(axis=1)][0, 8])


def test_without_such_files_there_are_no_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    none_are_held()


def test_workers_with_a_limit_of_addresses_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_EXECUTOR_MEMORY_MB", "512")
    none_are_held()


def none_are_held() -> None:
    shared_memory.begin()
    with shared_memory.held("a") as slot:
        assert slot is None
    assert shared_memory._MEMORY is None
