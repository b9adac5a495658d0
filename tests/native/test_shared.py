"""Memory shared by processes: each holds a slot alone, also after a kill; slots come and go."""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from waiting import PATIENCE

from penstock.native import memory_bound, shared_memory, spill_files
from penstock.native.shared_memory import Form, SharedMemory, Slot, place
from penstock.native.spill_files import PREFIX, SpillFiles

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
    return int(memory.heads[(memory.heads[:, :2] == words).all(axis=1)][0, shared_memory._NOTES][0])


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


# The bound of the memory: what does not fit is on disk.

WORDS = 1 << 14
"""Words of a value, 128 kB."""


def put(slot: Slot, value: int) -> None:
    array = slot.array(1)
    (array if len(array) == 2 * WORDS else slot.zeros(1, 2 * WORDS))[:WORDS] = value
    slot.zeros(2, WORDS)[:] = -1
    slot.needed[1], slot.needed[2] = WORDS, 0
    slot.notes[1] = value


def take(slot: Slot) -> int | None:
    assert (slot.array(1)[:WORDS] == slot.notes[1]).all()
    return int(slot.notes[1])


FORM = Form(take, put, lambda value: 8 * WORDS)
OF_VALUE = 8 * 2 * WORDS
"""Bytes of a value in memory without what it does not need."""


def counted(name: str) -> int:
    """Count how often the value was asked for."""
    with place(name, FORM) as own:
        own.kept = 1 if own.kept is None else own.kept + 1
        return own.kept


def bounded(monkeypatch: pytest.MonkeyPatch, sharing: SharedMemory, values: int) -> SharedMemory:
    """The memory, in which so many values fit."""
    made = replace(sharing, bound=values * OF_VALUE)
    monkeypatch.setattr(shared_memory, "_MEMORY", made)
    return made


def on_disk(memory: SharedMemory) -> set[int]:
    folder = memory.files.folder
    return {int(path.name) for path in folder.iterdir()} if folder.exists() else set()


def numbers(names: str) -> set[int]:
    return {shared_memory._NUMBERS[name] for name in names}


def resident(memory: SharedMemory) -> int:
    """The bytes that the arrays have in the system's memory."""
    maps = Path("/proc/self/smaps").read_text().split(f"\n{memory.words.ctypes.data:x}-")[1]
    return 1024 * int(maps.split("Rss:")[1].split()[0])


def test_values_that_do_not_fit_are_on_disk(monkeypatch: pytest.MonkeyPatch, sharing: SharedMemory) -> None:
    memory = bounded(monkeypatch, sharing, 3)
    for turn in range(1, 5):
        assert [counted(name) for name in "abcdefgh"] == [turn] * 8
        assert on_disk(memory) == numbers("defgh"), "the first ones stay in memory turn by turn"
        assert not memory.full
    assert sum(path.stat().st_size for path in memory.files.folder.iterdir()) < 5 * 8 * WORDS / 10


def test_memory_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch, sharing: SharedMemory) -> None:
    for name in "abcdefgh":
        counted(name)
    all_values = resident(sharing)
    assert all_values >= 8 * 8 * WORDS
    bounded(monkeypatch, sharing, 0)
    for name in "abcdefgh":
        counted(name)
    assert resident(sharing) < all_values / 8


def test_the_coldest_values_make_room(monkeypatch: pytest.MonkeyPatch, sharing: SharedMemory) -> None:
    memory = bounded(monkeypatch, sharing, 3)
    for name in "abcd":
        counted(name)
    assert on_disk(memory) == numbers("d")
    for name in "bdbd":
        counted(name)
    assert on_disk(memory) == numbers("a"), "a was not asked for since the last turn of d"
    assert [counted(name) for name in "abcd"] == [2, 4, 2, 4]


def test_a_value_that_another_process_holds_is_not_moved(
    monkeypatch: pytest.MonkeyPatch, sharing: SharedMemory, fork: Callable[..., Any]
) -> None:
    memory = bounded(monkeypatch, sharing, 1)
    counted("a")
    here, there = FORK.Pipe()
    fork(hold, "a", there)
    here.recv()
    for _ in range(3):
        counted("b")
    assert on_disk(memory) == numbers("b")
    assert memory_notes("a") == 7


def test_a_full_disk_and_lost_files_forget_the_value(
    monkeypatch: pytest.MonkeyPatch, sharing: SharedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    memory = bounded(monkeypatch, sharing, 0)
    monkeypatch.setattr(logging.getLogger("penstock"), "propagate", True)
    assert [counted("a"), counted("a")] == [1, 2]
    file = memory.files.folder / str(shared_memory._NUMBERS["a"])
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", whole[:-1] + bytes([whole[-1] ^ 1]), bytes(len(whole))):
        file.write_bytes(damaged)
        assert counted("a") == 1 and f"read from {memory.files.folder}: the file of a state is damaged" in caplog.text
        caplog.clear()
    file.unlink()
    assert counted("a") == 1
    caplog.clear()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(signal, "SIGXFSZ", signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        assert counted("a") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    assert "cannot be written to" in caplog.text and not on_disk(memory)
    assert counted("a") == 1


def test_a_failure_while_a_value_is_from_disk_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, sharing: SharedMemory
) -> None:
    bounded(monkeypatch, sharing, 0)
    counted("a")
    with pytest.raises(ZeroDivisionError), place("a", FORM) as own:
        own.kept = 1 // 0
    assert counted("a") == 1


def test_idle_values_leave_no_files(monkeypatch: pytest.MonkeyPatch, sharing: SharedMemory) -> None:
    memory = bounded(monkeypatch, sharing, 0)
    counted("a")
    assert on_disk(memory)
    monkeypatch.setattr(shared_memory, "IDLE", -10)
    shared_memory.sweep()
    assert not on_disk(memory) and counted("a") == 1


def test_files_of_ended_daemons_are_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fork: Callable[..., Any]
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    ended = fork(os.getpid)
    ended.join(PATIENCE)
    for owner in (ended.pid, os.getppid()):
        (tmp_path / f"{PREFIX}{owner}").mkdir()
        (tmp_path / f"{PREFIX}{owner}" / "3").touch()
    assert SpillFiles.of_worker().folder == tmp_path / f"{PREFIX}{os.getpid()}"
    assert [path.name for path in tmp_path.iterdir()] == [f"{PREFIX}{os.getppid()}"]


def test_workers_without_slots_keep_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_MEMORY", None)
    monkeypatch.setattr(shared_memory, "_OWN", {})
    monkeypatch.setattr(memory_bound, "of_worker", lambda: 3 * 8 * WORDS)
    for turn in range(1, 4):
        assert [counted(name) for name in "abcde"] == [turn] * 3 + [1] * 2


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40), max_size=3), st.integers(1, 200))
def test_files_have_what_was_written(values: list[list[int]], piece: int) -> None:
    arrays = [np.array(each, np.int64) for each in values]
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill_files, "PIECE", piece)
        files = SpillFiles(Path(name))
        files.write(7, arrays)
        found = [np.ones_like(each) for each in arrays]
        files.read(7, found)
    assert all((one == other).all() for one, other in zip(arrays, found, strict=True))


@pytest.mark.parametrize(
    ("text", "size"), [("1k", 1024), ("700m", 700 << 20), ("4G", 4 << 30), ("2tb", 2 << 40), ("4", None), ("0m", None)]
)
def test_a_bound_is_a_size_as_spark_has_it(text: str, size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_bound.size_in_bytes(text) == size
    monkeypatch.setenv(memory_bound.VARIABLE, text)
    monkeypatch.setenv(memory_bound.LIMIT, "100")
    system = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_bound.of_executor() == (size or memory_bound.of_executor()) <= max(size or 0, system // 4)
    assert memory_bound.of_worker() == 25 << 20
    monkeypatch.delenv(memory_bound.LIMIT)
    assert memory_bound.of_worker() == memory_bound.of_executor() // (os.cpu_count() or 1)


def test_a_container_s_memory_is_what_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "v1").write_text("1073741824\n")
    (tmp_path / "v2").write_text("max\n")
    monkeypatch.delenv(memory_bound.VARIABLE, raising=False)
    monkeypatch.setattr(memory_bound, "OF_CONTAINER", [str(tmp_path / name) for name in ("v1", "v2", "v3")])
    assert memory_bound.of_executor() == 1 << 28
