"""Arrays on an executor's disk: a file for each slot of `shared_memory`, in a folder of the daemon that forks workers.

The folder is in one of Spark's own folders for temporary files, which Spark removes with the executor. A file has the
arrays in pieces, each compressed with lz4 after a head of three integers: its length, its CRC32C and the length of what
it was made of. Disks are slower than lz4: records of segments become a quarter.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from penstock.native import Array, crc32c

VARIABLE = "SPARK_LOCAL_DIRS"
"""Spark gives its Python processes the folders of the executor, separated by commas."""
PREFIX = "penstock-state-"
PIECE = 1 << 24
"""Bytes of an array that are compressed together, at most."""
CODEC = "lz4_raw"
HEAD = Struct("<qqq")


@dataclass(frozen=True)
class SpillFiles:
    """The files of one daemon and its workers, in `folder`, which is made with the first file."""

    folder: Path

    @classmethod
    def of_worker(cls) -> SpillFiles:
        """Those of this process and its forks. Removes what daemons left that have ended."""
        root = Path(os.environ.get(VARIABLE, "").split(",")[0] or tempfile.gettempdir())
        for old in root.glob(f"{PREFIX}*"):
            if not _alive(old.name.removeprefix(PREFIX)):
                shutil.rmtree(old, ignore_errors=True)
        return cls(root / f"{PREFIX}{os.getpid()}")

    def write(self, slot: int, arrays: Sequence[Array]) -> None:
        """Write the arrays of a slot; raises OSError, and leaves no file, if the disk does not take them."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with self._path(slot).open("wb") as file:
                for array in arrays:
                    _write(file, array.view(np.uint8))
        except OSError:
            self.remove(slot)
            raise

    def read(self, slot: int, arrays: Sequence[Array]) -> None:
        """Fill the arrays of a slot as they were written; raises OSError if the file is not as it was written."""
        with self._path(slot).open("rb") as file:
            for array in arrays:
                _read(file, array.view(np.uint8))

    def remove(self, slot: int) -> None:
        """Remove the file of a slot, if there is one."""
        with suppress(OSError):
            self._path(slot).unlink()

    def _path(self, slot: int) -> Path:
        return self.folder / str(slot)


def _write(file: BinaryIO, data: Array) -> None:
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        packed = pa.compress(pa.py_buffer(piece), CODEC, asbytes=True)
        file.write(HEAD.pack(len(packed), crc32c(packed), len(piece)))
        file.write(packed)


def _read(file: BinaryIO, data: Array) -> None:
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        head = file.read(HEAD.size)
        length, checksum, size = HEAD.unpack(head) if len(head) == HEAD.size else (0, 0, 0)
        packed = file.read(length) if 0 < length <= 2 * PIECE + HEAD.size else b""
        if size != len(piece) or len(packed) != length or crc32c(packed) != checksum:
            raise OSError(f"the file of a state is damaged at byte {file.tell()}")
        piece[:] = np.frombuffer(pa.decompress(packed, size, CODEC), np.uint8)


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
