"""Spark's files of a checkpoint: damaged files, and a batch that is written by hand; no Spark runs here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import write_batches

from penstock.checkpoint.checkpoint_folder import Local
from penstock.checkpoint.log import CheckpointLog, DamagedCheckpoint

CDC = '{"generation": 0, "time": 5, "planned": 6}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Batches 0 to 3; the last is not committed."""
    write_batches(tmp_path, [CDC] * 4, committed=2)
    return tmp_path


def test_a_whole_checkpoint_is_read(folder: Path) -> None:
    log = CheckpointLog(Local(folder))
    log.check()
    assert (log.last, log.committed[-1], log.query) == (3, 2, "an-id")
    assert log.batch(3).offsets == (CDC,)


def test_a_checkpoint_that_is_not_there_is_new(tmp_path: Path) -> None:
    log = CheckpointLog(Local(tmp_path / "nothing"))
    log.check()
    assert not log.begun and log.last == -1


DAMAGE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "empty offsets": (
        "offsets/3",
        lambda file: file.write_text(""),
        r"offsets/3 is empty .*move this file away: batch 3",
    ),
    "zeros": ("offsets/3", lambda file: file.write_bytes(b"\0" * 900), "offsets/3 is empty"),
    "cut offsets": (
        "offsets/3",
        lambda file: file.write_text("v1\n{}\n" + CDC[:20]),
        "offsets/3 is cut off or damaged",
    ),
    "cut header": ("offsets/3", lambda file: file.write_text('v1\n{"batchWa'), "offsets/3 is cut off or damaged"),
    "no bytes of text": (
        "offsets/3",
        lambda file: file.write_bytes(b"\xff\xfe\n\n\n"),
        "offsets/3 is cut off or damaged",
    ),
    "empty before": ("offsets/2", lambda file: file.write_text(""), r"offsets/2 is empty .*backup"),
    "offsets gone": ("offsets/2", Path.unlink, "offsets/2 is missing: batch 3 continues from it"),
    "commit gone": ("commits/2", Path.unlink, "commits/2 is missing: batch 3 was planned after it"),
    "empty commit": ("commits/2", lambda file: file.write_text(""), r"commits/2 is empty .*the batch runs again"),
    "cut commit": ("commits/2", lambda file: file.write_text('v1\n{"ne'), "commits/2 is cut off or damaged"),
    "id gone": ("metadata", Path.unlink, "metadata is missing: sinks know the query's batches by the id in it"),
    "empty id": ("metadata", lambda file: file.write_text(""), "metadata is empty"),
}


@pytest.mark.parametrize(("name", "harm", "said"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_named_with_the_way_out(
    folder: Path, name: str, harm: Callable[[Path], object], said: str
) -> None:
    harm(folder / name)
    with pytest.raises(DamagedCheckpoint, match=said) as raised:
        CheckpointLog(Local(folder)).check()
    assert "penstock checkpoints set NAME --to TIME" in raised.value.next and str(folder) in raised.value.where


def test_a_batch_is_added_as_one_that_is_done(folder: Path) -> None:
    moved, before = CDC.replace("5", "9"), CheckpointLog(Local(folder)).query
    assert CheckpointLog(Local(folder)).add((moved,)) == 4
    log = CheckpointLog(Local(folder))
    log.check()
    # Sinks that know what the query wrote would take the next batches for written.
    assert log.query not in (before, None)
    assert log.batch(4).offsets == (moved,) and log.committed[-1] == 4
    assert log.commit(4) == {"nextBatchWatermarkMs": 7}
    assert log.batch(4).about.keys() == {"batchWatermarkMs", "batchTimestampMs", "conf"}


@pytest.mark.parametrize("name", ["offsets/3", "commits/2"])
def test_a_batch_is_added_to_a_damaged_checkpoint(folder: Path, name: str) -> None:
    (folder / name).write_text("")
    assert CheckpointLog(Local(folder)).add((CDC,)) == 4
    CheckpointLog(Local(folder)).check()


def test_the_offsets_of_the_last_batch_are_replaced_without_the_old_checksum(folder: Path) -> None:
    (folder / "offsets" / "3").unlink()
    (folder / "offsets" / ".2.crc").write_text("of the old file")
    assert CheckpointLog(Local(folder)).replace(('{"generation": 0, "time": 1, "planned": 2}',)) == 2
    log = CheckpointLog(Local(folder))
    log.check()
    assert log.query != "an-id"
    assert json.loads(log.batch(2).offsets[0])["time"] == 1 and not (folder / "offsets" / ".2.crc").exists()
