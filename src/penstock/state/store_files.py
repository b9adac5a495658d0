"""The bytes of one partition of a Spark state store at one version, from its files, without Spark.

A partition's folder has files by version; version N + 1 is the state after batch N:

    7.zip            RocksDB: a database without its tables, which are in SSTs/ and listed in the file's `metadata`
    8.changelog      RocksDB: the changes from version 7 to 8
    7.snapshot       HDFS-backed: all keys and values
    8.delta          HDFS-backed: the changes from version 7 to 8

With checkpoint format 2 the names have the id that the commit log gives the version, `8_<id>.changelog`, and the file
has the ids of the versions since the last snapshot. The newest snapshot up to the version is opened, and the changes
after it are kept in memory. Files may be damaged or go away meanwhile: sizes are checked before anything is allocated.
"""

from __future__ import annotations

import json
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from heapq import merge
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from penstock.extras import install
from penstock.state.change_files import (
    DELETE,
    MERGE,
    MOST_BYTES,
    PUT,
    DamagedState,
    Gone,
    Input,
    Unsupported,
    changelog,
    damaged,
    delta,
    read,
)

_PART = 1 << 20
_ZIPPED = re.compile(r"(?:OPTIONS|MANIFEST)-\d+|CURRENT|IDENTITY|\d+\.log|metadata")
_TABLE = re.compile(r"\d+\.sst")
_SHARED = re.compile(r"[\w-]+\.sst")
_WRONG = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a damaged file may raise."""


@dataclass(frozen=True)
class Version:
    """A version of one partition: its folder, its number, and with checkpoint format 2 its id."""

    folder: Path
    number: int
    id: str | None = None

    def file(self, ending: str, number: int | None = None, id: str | None = None) -> Path:
        """The path of a file of this version, or of another version of the partition."""
        if number is None:
            number, id = self.number, self.id
        return self.folder / (f"{number}_{id}.{ending}" if id else f"{number}.{ending}")


class Base(Protocol):
    """The keys and values of a snapshot."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if there is none."""

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys with this prefix and their values, in the order of the keys' bytes."""


@dataclass
class Contents:
    """Keys and values of a partition: a snapshot, and what changed since (None: the key is gone).

    `families` are the numbers of the store's column families, with which keys then begin.
    """

    base: Base
    families: Mapping[str, int] = field(default_factory=dict)
    changed: dict[bytes, bytes | None] = field(default_factory=dict)

    def get(self, key: bytes) -> bytes | None:
        return self.changed[key] if key in self.changed else self.base.get(key)

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The keys with this prefix and their values, in the order of the keys' bytes."""
        if not self.changed:
            return self.base.items(prefix)
        return self._merged(prefix)

    def _merged(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        news = ((key, self.changed[key]) for key in sorted(self.changed) if key.startswith(prefix))
        olds = (item for item in self.base.items(prefix) if item[0] not in self.changed)
        for key, value in merge(olds, news, key=lambda item: item[0]):
            if value is not None:
                yield key, value

    def change(self, kind: int, key: bytes, value: bytes) -> None:
        if kind == MERGE:
            # With or without a comma between them, see `store_rows`.
            value = (self.get(key) or b"") + value
        self.changed[key] = None if kind == DELETE else value


@dataclass
class _Plain:
    """Keys and values in memory."""

    rows: dict[bytes, bytes]

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((key, self.rows[key]) for key in sorted(self.rows) if key.startswith(prefix))


@dataclass
class _Database:
    """A RocksDB database."""

    database: Any
    file: Path

    def get(self, key: bytes) -> bytes | None:
        with self._named():
            stored: bytes | None = self.database.get(key)
        return stored

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._named():
            for key, value in self.database.items(from_key=prefix or None):
                if not key.startswith(prefix):
                    break
                yield key, value

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (DamagedState, GeneratorExit):
            raise
        except Exception as error:
            raise damaged(self.file, f"RocksDB says: {error}") from error


def rocksdb(version: Version) -> AbstractContextManager[Contents]:
    """A partition of a store of Spark's RocksDBStateStoreProvider; raises Gone, Unsupported or DamagedState."""
    return _opened(version, "changelog", "zip", _database, changelog)


def hdfs(version: Version) -> AbstractContextManager[Contents]:
    """A partition of a store of Spark's HDFSBackedStateStoreProvider; raises Gone, Unsupported or DamagedState."""
    return _opened(version, "delta", "snapshot", _snapshot, delta)


@contextmanager
def _opened(version: Version, news: str, whole: str, base: Any, changes: Any) -> Iterator[Contents]:
    start, later = _history(version, news, whole)
    with ExitStack() as stack:
        contents = stack.enter_context(base(start)) if start else Contents(_Plain({}))
        total = 0
        for file in later:
            data = read(file)
            total += len(data)
            if total > MOST_BYTES:
                raise Unsupported(f"the changes since the last snapshot have more than {MOST_BYTES >> 20} MiB")
            for change in changes(data, file):
                contents.change(*change)
        yield contents


def _history(version: Version, news: str, whole: str) -> tuple[Path | None, list[Path]]:
    """The newest snapshot up to a version (None: it begins empty), and the files of the changes after it, in order."""
    ids = _ids(version, version.file(news)) if version.id else {}
    later: list[Path] = []
    for number in range(version.number, 0, -1):
        if version.id and number not in ids:
            raise damaged(version.file(news), f"it does not name version {number}")
        snapshot = version.file(whole, number, ids.get(number))
        if snapshot.exists():
            return snapshot, later[::-1]
        change = version.file(news, number, ids.get(number))
        if not change.exists():
            raise Gone(str(change))
        later.append(change)
    return None, later[::-1]


def _ids(version: Version, file: Path) -> dict[int, str]:
    """The ids of a version and of those before it since a snapshot, which its file of changes names."""
    known = {version.number: str(version.id)}
    if not file.exists():
        return known
    numbers = Input(read(file), file)
    if numbers.text() not in ("v3", "v4"):
        raise damaged(file, "it has an id, but no list of ids")
    try:
        return {int(entry["version"]): _id(entry["checkpointUniqueId"]) for entry in json.loads(numbers.text())} | known
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(file, f"its list of ids: {error}") from error


def _id(text: Any) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"[\w-]{1,64}", text):
        raise ValueError(f"{text!r:.80} is not an id")
    return text


# Snapshots.


@contextmanager
def _snapshot(file: Path) -> Iterator[Contents]:
    rows = {key: value for kind, key, value in delta(read(file), file) if kind == PUT}
    yield Contents(_Plain(rows))


@contextmanager
def _database(file: Path) -> Iterator[Contents]:
    """The database of a snapshot, in a folder of its own."""
    rocks = _library()
    with tempfile.TemporaryDirectory(prefix="penstock-state-") as folder:
        families = _placed(file, Path(folder))
        options = rocks.Options(raw_mode=True)
        # All tables are opened now: what the query then removes stays readable.
        options.set_max_open_files(-1)
        try:
            opened = rocks.Rdict(folder, options, access_type=rocks.AccessType.read_only())
        except Exception as error:
            if gone := next((link for link in Path(folder).glob("*.sst") if not link.exists()), None):
                raise Gone(str(gone.readlink())) from error
            raise damaged(file, f"RocksDB says: {error}") from error
        try:
            yield Contents(_Database(opened, file), families)
        finally:
            opened.close()


def _placed(file: Path, folder: Path) -> Mapping[str, int]:
    """Put the database's files into a folder, its tables as links; returns the numbers of its column families."""
    try:
        with zipfile.ZipFile(file) as zipped:
            room = MOST_BYTES
            for member in zipped.infolist():
                if not _ZIPPED.fullmatch(member.filename):
                    raise Unsupported(f"{file.name} has the unknown file {member.filename[:80]}")
                with zipped.open(member) as source, (folder / member.filename).open("wb") as target:
                    room -= _copied(source, target, room, file)
        about = json.loads((folder / "metadata").read_bytes().partition(b"\n")[2])
        tables = {str(sst_file["localFileName"]): _shared(sst_file, file) for sst_file in about.get("sstFiles", ())}
        families = {str(name): int(number) for name, number in (about.get("columnFamilyMapping") or {}).items()}
    except FileNotFoundError as error:
        raise Gone(str(file)) from error
    except _WRONG as error:
        raise damaged(file, f"{type(error).__name__}: {error}") from error
    for name, table in tables.items():
        if not _TABLE.fullmatch(name):
            raise damaged(file, f"it has a table with the name {name!r:.80}")
        (folder / name).symlink_to(table)
    return families


def _copied(source: Any, target: BinaryIO, room: int, file: Path) -> int:
    size = 0
    while part := source.read(_PART):
        size += len(part)
        if size > room:
            raise damaged(file, f"it has more than {MOST_BYTES >> 20} MiB")
        target.write(part)
    return size


def _shared(sst_file: Mapping[str, Any], file: Path) -> Path:
    """The path of a table, which several snapshots may share."""
    name = str(sst_file["dfsSstFileName"])
    if not _SHARED.fullmatch(name):
        raise damaged(file, f"it has a table with the name {name!r:.80}")
    path = file.resolve().parent / "SSTs" / name
    if not path.exists():
        raise Gone(str(path))
    if path.stat().st_size != int(sst_file["sizeBytes"]):
        raise damaged(path, f"it has {path.stat().st_size} bytes, and {file.name} says {sst_file['sizeBytes']}")
    return path


def _library() -> Any:
    try:
        import rocksdict
    except ImportError:
        raise Unsupported(f"RocksDB is not installed: {install('rocksdb')}") from None
    return rocksdict
