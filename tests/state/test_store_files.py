"""Files of Spark's state stores: what is written is read, and damaged bytes are refused with the file's name."""

from __future__ import annotations

import json
import random
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, strategies as some
from store_bytes import block, lz4, text, typed, untyped

from penstock.state import change_files
from penstock.state.change_files import (
    DELETE,
    MERGE,
    PUT,
    Change,
    DamagedState,
    Gone,
    Unsupported,
    changelog,
    decompressed,
    delta,
    read,
)
from penstock.state.store_files import Version, hdfs, rocksdb

FILE = Path("state/0/0/7.changelog")
SHORT = some.binary(max_size=40)
CHANGES = some.lists(
    some.tuples(some.sampled_from([PUT, MERGE]), SHORT, SHORT) | some.tuples(some.just(DELETE), SHORT, some.just(b""))
)
WITHOUT_MERGES = CHANGES.map(lambda made: [one for one in made if one[0] != MERGE])


@given(WITHOUT_MERGES, CHANGES)
def test_changes_of_each_version_are_read_as_they_were_written(old: list[Change], new: list[Change]) -> None:
    ids = text(json.dumps([{"version": 6, "checkpointUniqueId": "a-b"}]))
    for head, written, body in (
        (b"", old, untyped(old)),
        (text("v2"), new, typed(new)),
        (text("v3") + ids, old, untyped(old)),
        (text("v4") + ids, new, typed(new)),
    ):
        assert list(changelog(head + body, FILE)) == written
    assert list(delta(untyped(old), FILE)) == old


@given(some.binary(max_size=5000), some.integers(0, 400))
def test_compressed_bytes_are_read_as_they_were_written(data: bytes, repeats: int) -> None:
    whole = data + b"again" * repeats
    assert decompressed(lz4(whole), FILE) == whole
    assert decompressed(pa.compress(whole, "zstd", asbytes=True), FILE) == whole


@given(CHANGES, some.sampled_from(["v2", "v4"]), some.data())
def test_damage_is_refused_or_changes_what_is_read(changes: list[Change], version: str, data: some.DataObject) -> None:
    good = text(version) + (text("[]") if version == "v4" else b"") + typed(changes)
    packed = bytearray(lz4(good))
    for _ in range(data.draw(some.integers(1, 4))):
        packed[data.draw(some.integers(0, len(packed) - 1))] = data.draw(some.integers(0, 255))
    cut = bytes(packed[: data.draw(some.integers(0, len(packed)))])
    for broken in (bytes(packed), cut):
        try:
            list(changelog(decompressed(broken, FILE), FILE))
        except DamagedState as error:
            assert "a file of the state is damaged: " in str(error) and str(FILE) in str(error) and error.next
        except Unsupported as error:
            assert FILE.name in str(error)


@given(some.binary(max_size=200))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    for read_changes in (changelog, delta):
        try:
            list(read_changes(data, FILE))
        except DamagedState as error:
            assert str(FILE) in str(error)
        except Unsupported as error:
            assert FILE.name in str(error)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (struct.pack("<8sBiiI", b"LZ4Block", 0x26, 3, 1 << 31 - 1, 0), "the block of lz4 at byte 0 has wrong sizes"),
        (struct.pack("<8sBiiI", b"LZ4Block", 0x26, 1 << 30, 8, 0), "the block of lz4 at byte 0 has wrong sizes"),
        (struct.pack("<8sBiiI", b"LZ4Block", 0x26, -1, -1, 0), "the block of lz4 at byte 0 has wrong sizes"),
        (block(b"abcd", b"ab", 0x10), "the block of lz4 at byte 0 has wrong sizes"),
        (block(b"abcd", b"\xff\xff", 0x20), "a block of lz4"),
        (block(b"abcd", b"abcd", 0x10), "it is cut off"),
        (lz4(b"abcd") + b"x", "1 bytes follow its end"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 20, "zstd"),
    ],
)
def test_wrong_sizes_are_refused_before_anything_is_allocated(data: bytes, said: str) -> None:
    with pytest.raises(DamagedState, match=said):
        decompressed(data, FILE)


def test_other_codecs_versions_and_more_than_fits_are_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match=r"7\.changelog is compressed with another codec than lz4 and zstd"):
        decompressed(b"\x82SNAPPY\0", FILE)
    with pytest.raises(Unsupported, match=r"7\.changelog is of the unknown version v9"):
        list(changelog(text("v9") + b"\0", FILE))
    monkeypatch.setattr(change_files, "MOST_BYTES", 10)
    for data in (lz4(b"a" * 11), pa.compress(b"a" * 11, "zstd", asbytes=True)):
        with pytest.raises(Unsupported, match=r"7\.changelog has more than"):
            decompressed(data, FILE)


def test_checksums_that_hadoop_wrote_are_checked(tmp_path: Path) -> None:
    file, sums = tmp_path / "1.delta", tmp_path / ".1.delta.crc"
    body = random.Random(1).randbytes(1500)
    data = lz4(body)
    file.write_bytes(data)
    assert read(file) == body, "files from a copy may lack checksums"
    size = 512
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    head = b"crc\0" + struct.pack(">i", size)
    sums.write_bytes(head + b"".join(struct.pack(">I", zlib.crc32(part)) for part in parts))
    assert len(parts) > 1 and read(file) == body
    file.write_bytes(data[:-1] + b"x")
    with pytest.raises(DamagedState, match=r"do not have the checksums.*1\.delta"):
        read(file)
    for broken in (b"", head[:-1], b"crc\0" + bytes(4)):
        sums.write_bytes(broken)
        with pytest.raises(DamagedState, match="its file of checksums is damaged"):
            read(file)


def write(file: Path, body: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lz4(body))


def test_changes_apply_in_order_to_the_newest_snapshot(tmp_path: Path) -> None:
    write(tmp_path / "1.delta", untyped([(PUT, b"never", b"read")]))
    write(tmp_path / "2.snapshot", untyped([(PUT, b"a", b"1"), (PUT, b"c", b"1"), (PUT, b"b", b"1")]))
    write(tmp_path / "3.delta", untyped([(PUT, b"a", b"2"), (DELETE, b"b", b""), (PUT, b"d", b"2")]))
    write(tmp_path / "4.delta", untyped([(DELETE, b"d", b""), (PUT, b"b", b"3")]))
    write(tmp_path / "5.delta", untyped([(DELETE, b"a", b"")]))
    for number, expected in (
        (2, {b"a": b"1", b"b": b"1", b"c": b"1"}),
        (3, {b"a": b"2", b"c": b"1", b"d": b"2"}),
        (4, {b"a": b"2", b"b": b"3", b"c": b"1"}),
        (5, {b"b": b"3", b"c": b"1"}),
    ):
        with hdfs(Version(tmp_path, number)) as contents:
            assert list(contents.items()) == sorted(expected.items())
            assert list(contents.items(b"b")) == [(key, value) for key, value in expected.items() if key == b"b"]
            assert contents.get(b"d") == expected.get(b"d")
    with pytest.raises(Gone, match=r"6\.delta"), hdfs(Version(tmp_path, 6)):
        pass


def test_merged_values_follow_each_other(tmp_path: Path) -> None:
    changes = [(MERGE, b"k", b"1"), (MERGE, b"k", b"2"), (PUT, b"l", b"1"), (DELETE, b"l", b""), (MERGE, b"l", b"9")]
    write(tmp_path / "1.changelog", text("v2") + typed(changes))
    with rocksdb(Version(tmp_path, 1)) as contents:
        assert list(contents.items()) == [(b"k", b"12"), (b"l", b"9")]


def test_versions_with_ids_follow_the_list_in_the_newest_file(tmp_path: Path) -> None:
    ids = text(json.dumps([{"version": 1, "checkpointUniqueId": "one"}]))
    write(tmp_path / "1_one.changelog", text("v3") + text("[]") + untyped([(PUT, b"k", b"1")]))
    write(tmp_path / "1_other.changelog", text("v3") + text("[]") + untyped([(PUT, b"k", b"of a batch that failed")]))
    write(tmp_path / "2_two.changelog", text("v3") + ids + untyped([(PUT, b"l", b"2")]))
    with rocksdb(Version(tmp_path, 2, "two")) as contents:
        assert list(contents.items()) == [(b"k", b"1"), (b"l", b"2")]
    for wrong, said in (
        ("[]", "it does not name version 1"),
        ("[{}]", "its list of ids"),
        ("{", "its list of ids"),
        ('[{"version": 1, "checkpointUniqueId": "../one"}]', "'../one' is not an id"),
    ):
        write(tmp_path / "2_two.changelog", text("v3") + text(wrong) + untyped([]))
        with pytest.raises(DamagedState, match=said), rocksdb(Version(tmp_path, 2, "two")):
            pass
