"""The files of a spool, after a process died at any moment."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from penstock.errors import PenstockError
from penstock.ingest.events import KeyedEvents
from penstock.ingest.spool_files import SpoolFolder, SpoolPosition, SpoolWriter, folders, frame, frames

KEYS = st.none() | st.binary(max_size=5)


@st.composite
def events(draw: st.DrawFn) -> KeyedEvents:
    values = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=4))
    count = len(values)
    keys = draw(st.none() | st.binary(max_size=5) | st.lists(KEYS, min_size=count, max_size=count))
    return KeyedEvents.of(values, keys, 0)


@given(st.lists(events(), min_size=1, max_size=4), st.data())
def test_of_a_file_cut_anywhere_the_whole_frames_are_read(written: list[KeyedEvents], data: st.DataObject) -> None:
    parts = [frame("topic", time, one) for time, one in enumerate(written)]
    cut = data.draw(st.integers(0, sum(map(len, parts))))
    whole, end = 0, 0
    while whole < len(parts) and end + len(parts[whole]) <= cut:
        end += len(parts[whole])
        whole += 1
    found = list(frames(b"".join(parts)[:cut]))
    assert [frame(one.topic, one.time, one.events()) for one, _ in found] == parts[:whole]
    assert not found or found[-1][1] == end


@given(st.data())
def test_a_spoilt_byte_ends_what_is_read(data: st.DataObject) -> None:
    part = frame("topic", 1, KeyedEvents.of([b"value"], None, 0))
    at = data.draw(st.integers(0, len(part) - 1))
    spoilt = bytearray(part * 2)
    spoilt[at] ^= data.draw(st.integers(1, 255))
    assert list(frames(bytes(spoilt))) == []


def write(folder: SpoolFolder, segment: int, *parts: bytes) -> None:
    folder.file(segment).write_bytes(b"".join(parts))


def test_what_was_cut_short_at_the_end_is_dropped(tmp_path: Path) -> None:
    folder, part = SpoolFolder(tmp_path), frame("topic", 1, KeyedEvents.of([b"value"], None, 0))
    write(folder, 4, part)
    write(folder, 5, part, part[:-1])
    assert folder.recover() == 6
    assert folder.file(5).read_bytes() == part


def test_damage_in_an_older_file_is_told_with_its_place(tmp_path: Path) -> None:
    folder, part = SpoolFolder(tmp_path), frame("topic", 1, KeyedEvents.of([b"value"], None, 0))
    write(folder, 4, part, part[:-1], part)
    write(folder, 5, part)
    with pytest.raises(PenstockError, match=rf"damaged at byte {len(part)} \({folder.file(4)}\)"):
        folder.recover()


@pytest.mark.parametrize("at", range(50))
def test_damage_before_acknowledged_events_is_told_in_the_newest_file_too(tmp_path: Path, at: int) -> None:
    folder, part = SpoolFolder(tmp_path), frame("topic", 1, KeyedEvents.of([b'{"a":"\xc2\x94"}'], b"key", 0))
    spoilt = bytearray(part)
    spoilt[at % len(part)] ^= 1 << at % 8
    write(folder, 5, part, bytes(spoilt), part)
    with pytest.raises(PenstockError, match=rf"damaged at byte {len(part)} \({folder.file(5)}\)"):
        folder.recover()
    assert folder.file(5).stat().st_size == 3 * len(part)


@given(st.binary(max_size=20), st.data())
def test_a_torn_end_is_dropped_whatever_it_has(
    tmp_path_factory: pytest.TempPathFactory, value: bytes, data: st.DataObject
) -> None:
    folder, part = (
        SpoolFolder(tmp_path_factory.mktemp("spool")),
        frame("topic", 1, KeyedEvents.of([value + b"."], None, 0)),
    )
    cut = data.draw(st.integers(0, len(part) - 1))
    write(folder, 5, part, part[:cut], bytes(data.draw(st.sampled_from([0, len(part) - cut]))))
    assert folder.recover() == 6
    assert folder.file(5).read_bytes() == part


def test_the_place_is_kept_and_older_files_go(tmp_path: Path) -> None:
    folder, part = SpoolFolder(tmp_path), frame("topic", 1, KeyedEvents.of([b"value"], None, 0))
    for segment in range(3):
        write(folder, segment, part)
    assert folder.place() == SpoolPosition(0, 0)
    folder.note(SpoolPosition(2, len(part)))
    assert (folder.place(), folder.segments(), folder.recover()) == (SpoolPosition(2, len(part)), [2], 3)
    write(folder, 1, part[:-1])  # as if the process had died between the two
    assert (folder.recover(), folder.segments()) == (3, [2])


def test_a_frame_larger_than_a_read_comes_alone(tmp_path: Path) -> None:
    folder, part = SpoolFolder(tmp_path), frame("topic", 1, KeyedEvents.of([b"x" * 100], None, 0))
    write(folder, 0, part, part)
    found, place = folder.read(SpoolPosition(0, 0), 2 * len(part), 10)
    assert (len(found), place) == (1, SpoolPosition(0, len(part)))


def test_a_second_process_is_kept_away(tmp_path: Path) -> None:
    folder = SpoolFolder(tmp_path)
    with folder.locked(), pytest.raises(PenstockError, match="another process uses this spool"), folder.locked():
        pass


def test_workers_take_over_the_folders_of_other_numbers_of_workers(tmp_path: Path) -> None:
    part = frame("topic", 1, KeyedEvents.of([b"value"], None, 0))
    for path in (tmp_path, *(tmp_path / f"worker-{number}" for number in range(5))):
        path.mkdir(exist_ok=True)
        write(SpoolFolder(path), 0, part)
    (tmp_path / "worker-6").mkdir()  # without events

    def names(worker: int, workers: int) -> tuple[str, list[str]]:
        own, left = folders(tmp_path, worker, workers)
        return own.path.name, [one.path.name for one in left]

    whole = tmp_path.name
    assert names(0, 1) == (whole, [f"worker-{number}" for number in range(5)])
    assert [names(worker, 2) for worker in range(2)] == [
        ("worker-0", [whole, "worker-2", "worker-4"]),
        ("worker-1", ["worker-3"]),
    ]
    assert [names(worker, 6)[1] for worker in range(6)] == [[whole], [], [], [], [], []]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_all_files_are_the_owners_only(tmp_path: Path, umask: None) -> None:
    path = tmp_path / "new" / "worker-0"
    folder, part = SpoolFolder(path), frame("topic", 1, KeyedEvents.of([b"value"], None, 0))
    with folder.locked():
        (path / "lock").chmod(0o644)
    with folder.locked():
        writer = SpoolWriter(folder, 0, 10)
        for _ in range(3):
            writer.append(part)
        folder.note(SpoolPosition(1, 0))
        with folder.file(2).open("ab") as file:
            file.write(b"cut short")
        folder.recover()
        writer.close()
    names = {one.name: mode(one) for one in path.iterdir()}
    assert set(names) == {"lock", "synced", "place.json", f"{1:012d}.spool", f"{2:012d}.spool"}
    assert set(names.values()) == {0o600}
    assert [mode(one) for one in (path, path.parent)] == [0o700, 0o700]


def written(folder: SpoolFolder, *parts: bytes) -> None:
    """Leave the files as a process does that is killed at this moment."""
    writer = SpoolWriter(folder, 0, 1 << 20)
    for part in parts:
        writer.append(part)
    writer.close()


def event(n: int) -> KeyedEvents:
    return KeyedEvents.of([b'{"n":%d}' % n], None, 0)


PARTS = [frame("topic", 1, event(n)) for n in range(3)]
SIZE = len(PARTS[0])


@given(st.integers(0, 3 * SIZE - 1), st.integers(0, 7), st.booleans())
def test_acknowledged_events_that_are_damaged_later_end_the_start_wherever_they_are(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int, cut: bool
) -> None:
    folder = SpoolFolder(tmp_path_factory.mktemp("spool"))
    written(folder, *PARTS)
    spoilt = bytearray(b"".join(PARTS))
    spoilt[at] ^= 1 << bit
    spoilt = spoilt[:at] if cut else spoilt
    folder.file(0).write_bytes(spoilt)
    whole = at - at % SIZE
    with pytest.raises(PenstockError, match=rf"damaged at byte {whole} \({folder.file(0)}\)") as said:
        folder.recover()
    assert folder.file(0).read_bytes() == spoilt, "nothing is deleted"
    command = said.value.next.split("`")[1]
    subprocess.run(command, shell=True, check=True)
    assert folder.recover() == 1
    assert folder.file(0).read_bytes() == spoilt[:whole]


def test_what_kafka_has_may_be_damaged(tmp_path: Path) -> None:
    folder = SpoolFolder(tmp_path)
    written(folder, *PARTS)
    folder.note(SpoolPosition(0, 2 * SIZE))
    spoilt = bytearray(b"".join(PARTS))
    spoilt[3] ^= 1
    folder.file(0).write_bytes(spoilt)
    assert folder.recover() == 1
    folder.note(SpoolPosition(0, 3 * SIZE))
    folder.file(0).write_bytes(PARTS[0])
    assert folder.recover() == 1


def test_what_was_surely_not_acknowledged_goes_and_the_rest_is_kept_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = SpoolFolder(tmp_path)
    written(folder, *PARTS)
    with folder.file(0).open("ab") as file:
        file.write(PARTS[0][:-1])
    assert (folder.recover(), list(tmp_path.glob("*.damaged")), caplog.records) == (1, [], [])
    (tmp_path / "synced").unlink()
    with folder.file(0).open("ab") as file:
        file.write(PARTS[0][:-1])
    assert folder.recover() == 1
    assert folder.file(0).read_bytes() == b"".join(PARTS)
    kept = tmp_path / f"{0:012d}-{3 * SIZE}.damaged"
    assert (kept.read_bytes(), mode(kept)) == (PARTS[0][:-1], 0o600)
    [line] = [record.getMessage() for record in caplog.records]
    assert str(folder.file(0)) in line and f"last {SIZE - 1} bytes, from byte {3 * SIZE}" in line and str(kept) in line


@pytest.mark.parametrize(
    "text", [b"", b"[1", b'["a",0]', b"[]", b"[1]", b"[-1,0]", b"[9,0,1]", b"{}", b"\xff", b"[9,0]"]
)
def test_a_place_that_cannot_be_read_is_told_with_its_file(tmp_path: Path, text: bytes) -> None:
    folder = SpoolFolder(tmp_path)
    written(folder, *PARTS)
    (tmp_path / "place.json").write_bytes(text)
    with pytest.raises(PenstockError, match=r"cannot be read \(.*place.json\). Next: remove this file"):
        folder.recover()
    assert folder.segments() == [0]


@given(st.integers(0, 1000), st.integers(0, 7))
def test_a_bit_of_the_place_that_turned_is_noticed(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    folder, place = SpoolFolder(tmp_path_factory.mktemp("spool")), SpoolPosition(3, 1234)
    folder.note(place)
    text = bytearray((folder.path / "place.json").read_bytes())
    text[at % len(text)] ^= 1 << bit
    (folder.path / "place.json").write_bytes(text)
    with suppress(PenstockError):
        assert folder.place() == place


def test_a_file_that_was_moved_away_is_passed_over(tmp_path: Path) -> None:
    folder = SpoolFolder(tmp_path)
    written(folder, *PARTS)
    folder.note(SpoolPosition(0, SIZE))
    folder.file(0).unlink()
    assert folder.recover() == 1, "a new file is not begun before the place"


def test_a_topics_own_folder_is_taken_over_too(tmp_path: Path) -> None:
    folder = SpoolFolder(tmp_path / "worker-1")
    folder.of_topic("a.b-c").make()
    written(folder.of_topic("a.b-c"), *PARTS)
    assert folder.topics() == ["a.b-c"]
    own, left = folders(tmp_path, 0, 1)
    assert (own.path, [one.path for one in left]) == (tmp_path, [folder.path])


@pytest.mark.parametrize("name", ["000000000004-copy.spool", "copy.spool", "4.spool", "-00000000004.spool", ".spool"])
def test_files_that_are_not_segments_are_left_alone(tmp_path: Path, name: str) -> None:
    """Whoever repairs a spool keeps a copy beside the damaged file, as its message says."""
    folder, part = SpoolFolder(tmp_path), frame("topic", 1, KeyedEvents.of([b"value"], None, 0))
    write(folder, 4, part)
    (tmp_path / name).write_bytes(b"kept")
    assert folder.segments() == [4]
    assert folder.recover() == 5
    folder.note(SpoolPosition(5, 0))
    assert folder.segments() == []
    assert (tmp_path / name).read_bytes() == b"kept"
    assert not folder.has_events()


def test_segments_beyond_twelve_digits_keep_their_order(tmp_path: Path) -> None:
    folder = SpoolFolder(tmp_path)
    for segment in (10**12, 10**12 - 1, 7):
        write(folder, segment)
    assert folder.segments() == [7, 10**12 - 1, 10**12]


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"[1]", b"[1,2,3,4]", b'["1",2]', b"[1.5,2]", b"[-1,0]", b"[1,-2]", b"{}"]
)
def test_a_place_of_another_form_is_told_with_what_to_do(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "place.json").write_bytes(text)
    with pytest.raises(PenstockError, match=r"cannot be read.*remove this file and start again"):
        SpoolFolder(tmp_path).place()


def test_the_place_of_the_first_version_had_no_checksum(tmp_path: Path) -> None:
    (tmp_path / "place.json").write_bytes(b"[3, 12]")
    assert SpoolFolder(tmp_path).place() == (3, 12)


def test_a_place_far_behind_the_last_file_is_told(tmp_path: Path) -> None:
    folder, part = SpoolFolder(tmp_path), frame("topic", 1, KeyedEvents.of([b"value"], None, 0))
    write(folder, 4, part)
    folder.note(SpoolPosition(3, 0))
    (tmp_path / "place.json").write_bytes(b"[6, 0]")
    with pytest.raises(PenstockError, match="the position up to which Kafka has the spool cannot be read"):
        folder.recover()
    assert folder.segments() == [4], "nothing is deleted"


@pytest.mark.parametrize("mark", [b"", b"x" * 19, b"x" * 20, b"x" * 21])
def test_a_mark_that_cannot_be_read_says_nothing(tmp_path: Path, mark: bytes) -> None:
    folder, part = SpoolFolder(tmp_path), frame("topic", 1, KeyedEvents.of([b"value"], None, 0))
    write(folder, 4, part, part[:-1])
    (tmp_path / "synced").write_bytes(mark)
    assert folder.synced() is None
    assert folder.recover() == 5
    assert (tmp_path / f"000000000004-{len(part)}.damaged").read_bytes() == part[:-1], "kept: it may be acknowledged"


@given(st.lists(st.booleans(), min_size=12, max_size=12), st.booleans(), st.integers(1, 8))
def test_each_folder_with_events_is_taken_by_exactly_one_worker(
    tmp_path_factory: pytest.TempPathFactory, with_events: list[bool], at_top: bool, workers: int
) -> None:
    path = tmp_path_factory.mktemp("spool")
    expected = set()
    for folder, has in [(path, at_top), *((path / f"worker-{n}", has) for n, has in enumerate(with_events))]:
        folder.mkdir(exist_ok=True)
        if has:
            write(SpoolFolder(folder), 1)
            expected.add(folder)
    (path / "worker-x").mkdir()
    taken = []
    for number in range(workers):
        own, left = folders(path, number, workers)
        taken += [own.path, *(one.path for one in left)]
    assert len(taken) == len(set(taken))
    assert expected <= set(taken)


def test_a_full_disk_leaves_whole_frames_and_room_may_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, part = SpoolFolder(tmp_path), frame("topic", 1, KeyedEvents.of([b"value"], None, 0))
    writer, real = SpoolWriter(folder, 1, 1 << 20), os.write
    writer.append(part)

    def half(file: int, data: memoryview) -> int:
        if len(data) < len(part):
            raise OSError(28, "No space left on device")
        return real(file, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space left"):
        writer.append(part)
    monkeypatch.undo()
    assert (folder.file(1).read_bytes(), writer.end, writer.broken) == (part, (1, len(part)), "")
    writer.append(part)
    assert folder.file(1).read_bytes() == 2 * part
    assert folder.synced() == (1, 2 * len(part))
    writer.close()


def test_after_a_sync_that_failed_nothing_more_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second fsync would not report the error again."""
    folder, part = SpoolFolder(tmp_path), frame("topic", 1, KeyedEvents.of([b"value"], None, 0))
    writer = SpoolWriter(folder, 1, 1 << 20)

    def broken(file: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        writer.append(part)
    monkeypatch.undo()
    assert writer.broken == "Input/output error; look at the disk, then start again"
    with pytest.raises(OSError, match="look at the disk, then start again"):
        writer.append(part)
    assert writer.end == (1, 0)
    writer.close()


def test_a_writer_begins_a_new_file_when_one_is_full(tmp_path: Path) -> None:
    folder, part = SpoolFolder(tmp_path), frame("topic", 1, KeyedEvents.of([b"value"], None, 0))
    writer = SpoolWriter(folder, 3, 2 * len(part))
    for _ in range(5):
        writer.append(part)
    assert [folder.file(segment).stat().st_size for segment in folder.segments()] == [2 * len(part)] * 2 + [len(part)]
    assert writer.end == (5, len(part))
    writer.close()
