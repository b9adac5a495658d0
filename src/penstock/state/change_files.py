"""The bytes in files of changes of Spark's state stores: compressed, with checksums, and in five layouts.

Spark compresses them with the codec `spark.sql.streaming.stateStore.compression.codec`, which is lz4: blocks, each with
its sizes. What they hold is written by Java's DataOutput: keys and values after their sizes, -1 instead of the size of
a value that is gone, and -1 instead of a key at the end. Changelogs of RocksDB begin with their version: 2 has a byte
for the kind of each change, 3 and 4 are 1 and 2 with a list of ids, and 1 does not name its version.

The bytes may be damaged: sizes are checked before anything is allocated.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.errors import PenstockError

MOST_BYTES = 1 << 30
"""The most bytes of changes that are read into memory."""
END, PUT, DELETE, MERGE = 0x00, 0x01, 0x10, 0x11
_BLOCK = struct.Struct("<8sBiiI")
_MAGIC, _ZSTD = b"LZ4Block", b"\x28\xb5\x2f\xfd"
_RAW, _LZ4 = 0x10, 0x20
_PART = 1 << 20
_CRC, _CRC_HEAD, _CRC_LEAST = b"crc\0", 8, 16
_HAS_IDS = (b"v3", b"v4")

Change = tuple[int, bytes, bytes]
"""PUT, DELETE or MERGE, a key, and its value (empty for DELETE)."""


class Unsupported(Exception):
    """State that only Spark can read; the text says why."""


class Gone(Exception):
    """A file of the version is not there; the query may have removed it."""


class DamagedState(PenstockError):
    """A file of a state store cannot be decoded."""


def damaged(file: Path, why: str) -> DamagedState:
    return DamagedState(
        f"a file of the state is damaged: {why}",
        where=str(file),
        next="put the checkpoint back from a backup, or start the query over: `penstock checkpoints reset NAME`",
    )


def changelog(data: bytes, file: Path) -> Iterator[Change]:
    """The changes in a file of Spark's RocksDB state stores, of versions 1 to 4."""
    source = Input(data, file)
    version = data[2:4] if data[:2] == b"\0\2" else b""
    if version not in (b"", b"v2", b"v3", b"v4"):
        if data[2:3] == b"v" and data[3:4].isdigit():
            raise Unsupported(f"{file.name} is of the unknown version {data[2:4].decode()}")
        version = b""
    if version:
        source.text()
    if version in _HAS_IDS:
        source.text()
    return _typed(source) if version in (b"v2", b"v4") else _untyped(source)


def delta(data: bytes, file: Path) -> Iterator[Change]:
    """The changes in a file of Spark's HDFS-backed state stores."""
    return _untyped(Input(data, file))


def _untyped(source: Input) -> Iterator[Change]:
    while (size := source.number()) != -1:
        key = source.bytes(size)
        size = source.number()
        # Of all negative sizes, as Spark reads them.
        yield (DELETE, key, b"") if size < 0 else (PUT, key, source.bytes(size))
    source.end()


def _typed(source: Input) -> Iterator[Change]:
    while (kind := source.byte()) != END:
        key = source.bytes(source.number())
        if kind == DELETE:
            if source.number() != -1:
                raise damaged(source.file, "a removed key has a value")
            yield DELETE, key, b""
        elif kind in (PUT, MERGE):
            yield kind, key, source.bytes(source.number())
        else:
            raise damaged(source.file, f"it has a change of the unknown kind {kind}")
    source.end()


@dataclass
class Input:
    """Java's DataInput over bytes."""

    data: bytes
    file: Path
    at: int = 0

    def bytes(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.at:
            raise damaged(self.file, f"at byte {self.at} it needs {size} bytes, and has {len(self.data) - self.at}")
        self.at += size
        return self.data[self.at - size : self.at]

    def byte(self) -> int:
        return self.bytes(1)[0]

    def number(self) -> int:
        return int.from_bytes(self.bytes(4), "big", signed=True)

    def text(self) -> str:
        """A text of `writeUTF`: its size in two bytes, and bytes that are UTF-8 except for zero and emojis."""
        return self.bytes(int.from_bytes(self.bytes(2), "big")).decode(errors="replace")

    def end(self) -> None:
        if self.at != len(self.data):
            raise damaged(self.file, f"{len(self.data) - self.at} bytes follow its end")


def read(file: Path) -> bytes:
    """A file's bytes, decompressed; checked with the file of checksums that Hadoop writes beside it."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise Unsupported(f"{file.name} has more than {MOST_BYTES >> 20} MiB")
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise Gone(str(file)) from error
    _check(data, file)
    return decompressed(data, file)


def _check(data: bytes, file: Path) -> None:
    try:
        sums = file.with_name(f".{file.name}.crc").read_bytes()
    except FileNotFoundError:
        return
    size = int.from_bytes(sums[4:_CRC_HEAD], "big")
    if sums[:4] != _CRC or len(sums) < _CRC_HEAD or size < _CRC_LEAST:
        raise damaged(file, "its file of checksums is damaged")
    parts = (data[at : at + size] for at in range(0, len(data), size))
    if b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts) != sums[_CRC_HEAD:]:
        raise damaged(file, "its bytes do not have the checksums that were written with it")


def decompressed(data: bytes, file: Path) -> bytes:
    """The content of a compressed file."""
    if data[:8] == _MAGIC:
        return b"".join(_blocks(data, file))
    if data[:4] == _ZSTD:
        return _zstd(data, file)
    raise Unsupported(f"{file.name} is compressed with another codec than lz4 and zstd")


def _blocks(data: bytes, file: Path) -> Iterator[bytes]:
    """The blocks of a file of lz4-java's LZ4BlockOutputStream; an empty block is the end."""
    at = total = 0
    while at + _BLOCK.size <= len(data):
        magic, token, packed, size, _ = _BLOCK.unpack_from(data, at)
        at += _BLOCK.size
        method, most = token & 0xF0, 1 << (10 + (token & 0x0F))
        whole = magic == _MAGIC and 0 <= size <= most and 0 <= packed <= len(data) - at
        if not whole or method not in (_RAW, _LZ4) or (method == _RAW and packed != size):
            raise damaged(file, f"the block of lz4 at byte {at - _BLOCK.size} has wrong sizes")
        total += size
        if total > MOST_BYTES:
            raise Unsupported(f"{file.name} has more than {MOST_BYTES >> 20} MiB")
        if not size:
            break
        yield _block(data[at : at + packed], method, size, file)
        at += packed
    else:
        raise damaged(file, "it is cut off")
    if at != len(data):
        raise damaged(file, f"{len(data) - at} bytes follow its end")


def _block(packed: bytes, method: int, size: int, file: Path) -> bytes:
    if method == _RAW:
        return packed
    try:
        unpacked = pa.decompress(packed, decompressed_size=size, codec="lz4_raw", asbytes=True)
    except (OSError, ValueError) as error:
        raise damaged(file, f"a block of lz4: {error}") from error
    return bytes(unpacked)


def _zstd(data: bytes, file: Path) -> bytes:
    parts: list[bytes] = []
    total = 0
    try:
        with pa.CompressedInputStream(pa.py_buffer(data), "zstd") as stream:
            while part := stream.read(_PART):
                total += len(part)
                if total > MOST_BYTES:
                    raise Unsupported(f"{file.name} has more than {MOST_BYTES >> 20} MiB")
                parts.append(part)
    except OSError as error:
        raise damaged(file, f"zstd: {error}") from error
    return b"".join(parts)
