"""The rows of a state at a batch, from the files of Spark's checkpoint, without Spark.

`offsets/N` has the query's settings, which say how its state is kept; `commits/N` the ids of the versions if it has
checkpoint format 2. `state/<operator>/_metadata` names the stores, and files of schemas have the types of their rows:

    state/0/0/_metadata/schema           "v2", the schema of keys, the schema of values
    state/0/_stateSchema/default/0_...   "v3", and for each column family its name, schemas and the encoding of keys

The rows are those of Spark's reader of state: `key` and `value`, for a map `user_map_key` and `user_map_value`, for a
list `list_element`. The formats are those of Spark 4.3; what is not known here is left to Spark.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from pyspark.sql import types as st

from penstock.checkpoint.checkpoint_folder import Local
from penstock.checkpoint.log import CheckpointLog
from penstock.state import store_files
from penstock.state.change_files import Input, Unsupported, damaged
from penstock.state.store_files import Contents, Version
from penstock.state.stores import JOIN, StateStore, metadata
from penstock.state.unsafe_rows import DamagedRow, Decode, decoder, schema

CONF = "spark.sql.streaming."
PROVIDERS = {"RocksDBStateStoreProvider": store_files.rocksdb, "HDFSBackedStateStoreProvider": store_files.hdfs}
ONE_STORE = "default"
JOIN_FORMATS = ("1", "2")
"""Spark's formats of the state of joins with stores of their own for each side."""
_MOST_TEXT = 1 << 24
_SHORT = struct.Struct("<H")
_COMMA = ord(",")

_Shape = tuple[st.StructType, Callable[[list[Any]], list[Any]], Callable[[memoryview], Iterable[memoryview]]]
"""The columns of a variable's rows, the first values of a row from those of the key, and the bytes of its values."""

Match = Callable[[Any], bool]
"""Whether the rows of a key are wanted."""


@dataclass(frozen=True)
class Rows:
    """The rows of a state: their columns, and the rows of one partition, as lists of values of `unsafe_rows`."""

    columns: st.StructType
    partitions: int
    of: Callable[[int, Match | None], Iterator[list[Any]]]

    def all(self, match: Match | None = None) -> Iterator[list[Any]]:
        for partition in range(self.partitions):
            yield from self.of(partition, match)

    @property
    def key(self) -> st.StructType:
        kind = self.columns["key"].dataType
        assert isinstance(kind, st.StructType)
        return kind


@dataclass(frozen=True)
class _Batch:
    """A committed batch of a query: how its state is kept, and the versions of its stores."""

    store: StateStore
    number: int
    conf: Mapping[str, str]
    about: Mapping[str, Any]
    ids: Any

    @property
    def folder(self) -> Path:
        return self.store.checkpoint / "state" / self.store.options["operatorId"]

    @property
    def hdfs(self) -> bool:
        return self._provider.startswith("HDFS")

    @property
    def _provider(self) -> str:
        return self.conf.get(f"{CONF}stateStore.providerClass", "").rpartition(".")[2]

    def store_number(self, name: str) -> int:
        """The place of a store among those of the operator."""
        names = [info["storeName"] for info in self.about["stateStoreInfo"]]
        if name not in names:
            raise Unsupported(f"the operator has the stores {', '.join(names)}")
        return names.index(name)

    def prefix(self, name: str) -> int:
        """The number of columns that keys of a store begin with, for finding all keys with the same; 0 for none."""
        return int(self.about["stateStoreInfo"][self.store_number(name)]["numColsPrefixKey"])

    def contents(self, name: str, partition: int) -> AbstractContextManager[Contents]:
        """A partition of a store, by the name of the store."""
        folder = self.folder / str(partition)
        folder = folder if name == ONE_STORE else folder / name
        id = None
        if self.ids is not None:
            id = str(self.ids[partition][self.store_number(name)])
        # Version 0 is empty, and batch 0 makes version 1.
        return PROVIDERS[self._provider](Version(folder, self.number + 1, id))


def rows(store: StateStore, batch: int) -> Rows:
    """The rows of a state at a committed batch; also to read them raises Unsupported, Gone and `PenstockError`."""
    conf = CheckpointLog(Local(store.checkpoint)).batch(batch).about.get("conf") or {}
    ids = store.ids(batch)
    try:
        about = metadata(store.checkpoint / "state" / store.options["operatorId"], batch)
        of_operator = None if ids is None else ids[store.options["operatorId"]]
        committed = _Batch(store, batch, conf, about, of_operator)
        _require_known(committed)
        return _rows(committed)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Unsupported(f"its files do not have {error}") from error


def _require_known(batch: _Batch) -> None:
    provider = batch.conf.get(f"{CONF}stateStore.providerClass", "")
    if provider.rpartition(".")[2] not in PROVIDERS or not provider.startswith("org.apache.spark.sql.execution."):
        raise Unsupported(f"its state is kept by {provider or 'a provider that is not named'}")
    if (encoding := batch.conf.get(f"{CONF}stateStore.encodingFormat", "unsaferow")) != "unsaferow":
        raise Unsupported(f"its state is encoded as {encoding}")
    if batch.conf.get(f"{CONF}stateStore.rowChecksum.enabled", "false") != "false":
        raise Unsupported("its rows have checksums")
    if batch.store.operator == JOIN and batch.conf.get(f"{CONF}join.stateFormatVersion") not in JOIN_FORMATS:
        raise Unsupported(f"it has format {batch.conf.get(f'{CONF}join.stateFormatVersion')} of joins")


def _rows(batch: _Batch) -> Rows:
    if side := batch.store.options.get("joinSide"):
        return _join(batch, side)
    if variable := batch.store.options.get("stateVarName"):
        return _variable(batch, variable)
    key, value = _schemas(batch.folder / "0/_metadata/schema")
    keys = _Keys(key, batch.prefix(ONE_STORE), batch.hdfs).decode
    values = _values(value, batch.hdfs)

    def of(partition: int, match: Match | None) -> Iterator[list[Any]]:
        with batch.contents(ONE_STORE, partition) as contents, _named(batch, partition):
            for data, there in contents.items():
                decoded_key = keys(memoryview(data))
                if match is None or match(decoded_key):
                    yield [decoded_key, values(memoryview(there))]

    return Rows(_columns(key=key, value=value), batch.store.partitions, of)


def _variable(batch: _Batch, name: str) -> Rows:
    """The rows of a variable of `transformWithState`, which has a column family of its own."""
    info = batch.about["stateStoreInfo"][batch.store_number(ONE_STORE)]
    # The paths are those of the machine that wrote the checkpoint.
    file = PurePath(info["stateSchemaFilePaths"][-1]).name
    family = _families(batch.folder / "_stateSchema" / ONE_STORE / file).get(name)
    variables = json.loads(batch.about["operatorPropertiesJson"])["stateVariables"]
    kind = next((variable["stateVariableType"] for variable in variables if variable["stateName"] == name), "")
    shape = _SHAPES.get(kind)
    if family is None or shape is None or family.prefix < 0:
        raise Unsupported(f"the variable {name} is of the kind {kind or 'that its files do not name'}")
    columns, split, several = shape(family)
    key, value = _Keys(family.key, family.prefix, batch.hdfs).decode, _values(family.value, batch.hdfs)

    def of(partition: int, match: Match | None) -> Iterator[list[Any]]:
        with batch.contents(ONE_STORE, partition) as contents, _named(batch, partition):
            if name not in contents.families:
                raise Unsupported(f"partition {partition} has no column family {name}")
            begin = _SHORT.pack(contents.families[name])
            for data, there in contents.items(begin):
                key_parts = split(key(memoryview(data)[2:]))
                if match is None or match(key_parts[0]):
                    for encoded in several(memoryview(there)):
                        yield [*key_parts, value(encoded)]

    return Rows(columns, batch.store.partitions, of)


def _single(family: _Family) -> _Shape:
    return _columns(key=family.key, value=family.value), lambda key: [key], lambda data: [data]


def _map(family: _Family) -> _Shape:
    outer, inner = (field.dataType for field in family.key.fields)
    if not isinstance(outer, st.StructType) or not isinstance(inner, st.StructType):
        raise Unsupported("its keys are not structs")
    return _columns(key=outer, user_map_key=inner, user_map_value=family.value), list, lambda data: [data]


def _list(family: _Family) -> _Shape:
    return _columns(key=family.key, list_element=family.value), lambda key: [key], _several


def _several(data: memoryview) -> Iterator[memoryview]:
    """The values of a list, each after its size.

    Spark's version of RocksDB's operator, and the reader's, say whether a comma is between them. A size never begins
    with a comma: rows have multiples of eight bytes, and one for their version.
    """
    at = 0
    while at < len(data):
        at += data[at] == _COMMA
        size = int.from_bytes(data[at : at + 4], "little")
        if size % 8 != 1 or size > len(data) - at - 4:
            raise DamagedRow(f"an element of {size} bytes in {len(data)} bytes")
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


_SHAPES: dict[str, Callable[[_Family], _Shape]] = {"ValueState": _single, "MapState": _map, "ListState": _list}


def _join(batch: _Batch, side: str) -> Rows:
    """The rows of a side of a join: their store has the key and a number as its key."""
    name = f"{side}-keyWithIndexToValue"
    key, value = _schemas(batch.folder / "0" / name / "_metadata/schema")
    columns = st.StructType(key.fields[:-1])
    # Format 2 notes after the row whether it has found another.
    shown = value.fields if batch.conf[f"{CONF}join.stateFormatVersion"] == "1" else value.fields[:-1]
    keys, values = _Keys(key, batch.prefix(name), batch.hdfs).decode, _values(value, batch.hdfs)

    def of(partition: int, match: Match | None) -> Iterator[list[Any]]:
        with batch.contents(name, partition) as contents, _named(batch, partition):
            for data, there in contents.items():
                decoded_key = keys(memoryview(data))[:-1]
                if match is None or match(decoded_key):
                    yield [decoded_key, values(memoryview(there))[: len(shown)]]

    return Rows(_columns(key=columns, value=st.StructType(shown)), batch.store.partitions, of)


def _columns(**kinds: st.StructType) -> st.StructType:
    return st.StructType([st.StructField(name, _numbered(kind)) for name, kind in kinds.items()])


def _numbered(kind: st.StructType) -> st.StructType:
    """The struct with different names: Spark has a `sum` for each sum and mean."""
    seen: Counter[str] = Counter()
    fields = []
    for field in kind.fields:
        seen[field.name] += 1
        name = field.name if seen[field.name] == 1 else f"{field.name}_{seen[field.name]}"
        fields.append(st.StructField(name, field.dataType))
    return st.StructType(fields)


@dataclass(frozen=True)
class _named:
    """Tells bytes that cannot be decoded with the folder of their partition."""

    batch: _Batch
    partition: int

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DamagedRow):
            raise damaged(self.batch.folder / str(self.partition), f"a row: {error}") from error


# Keys and values. RocksDB has a byte for the version of the encoding before each row.


@dataclass(frozen=True)
class _Keys:
    """The keys of a store; the first `prefix` columns are a row of their own."""

    kind: st.StructType
    prefix: int
    hdfs: bool

    @property
    def decode(self) -> Decode:
        if not self.prefix or self.hdfs:
            return _values(self.kind, self.hdfs)
        parts = (self.kind.fields[: self.prefix], self.kind.fields[self.prefix :])
        first, last = (_values(st.StructType(fields), False) for fields in parts)

        def decode(data: memoryview) -> list[Any]:
            end = 4 + int.from_bytes(data[:4], "little")
            key_columns: list[Any] = first(data[4:end]) + last(data[end:])
            return key_columns

        return decode


def _values(kind: st.StructType, hdfs: bool) -> Decode:
    decode = decoder(kind)
    if hdfs:
        return decode

    def versioned(data: memoryview) -> Any:
        if bytes(data[:1]) != b"\0":
            raise DamagedRow(f"a row of the unknown version {bytes(data[:1]).hex() or 'none'}")
        return decode(data[1:])

    return versioned


# The schemas of a store.


def _schemas(file: Path) -> tuple[st.StructType, st.StructType]:
    """The schemas of keys and values."""
    source = _input(file)
    if (version := source.text()) != "v2":
        raise Unsupported(f"its schema is of the version {version[:10]}")
    return _struct(source), _struct(source)


@dataclass(frozen=True)
class _Family:
    """A column family of a store: a variable."""

    key: st.StructType
    value: st.StructType
    prefix: int


def _families(file: Path) -> dict[str, _Family]:
    source = _input(file)
    if (version := source.text()) != "v3":
        raise Unsupported(f"its schema is of the version {version[:10]}")
    families = {}
    for _ in range(source.number()):
        name = source.text()
        source.bytes(2)
        key = _struct(source)
        source.bytes(2)
        value = _struct(source)
        encoding = _json(source)
        _long_text(source)
        known = encoding.get("keyStateEncoderType") in ("NoPrefixKeyStateEncoderSpec", "PrefixKeyScanStateEncoderSpec")
        families[name] = _Family(key, value, int(encoding.get("numColsPrefixKey", 0)) if known else -1)
    return families


def _input(file: Path) -> Input:
    try:
        with file.open("rb") as source:
            return Input(source.read(_MOST_TEXT), file)
    except FileNotFoundError as error:
        raise Unsupported(f"there is no {file}") from error


def _long_text(source: Input) -> str:
    """A text in parts, because a text of `writeUTF` has at most 64 KiB."""
    return "".join(source.text() for _ in range(source.number()))


def _json(source: Input) -> dict[str, Any]:
    try:
        parsed = json.loads(_long_text(source))
        if not isinstance(parsed, dict):
            raise ValueError("it is not an object")
        return parsed
    except (ValueError, RecursionError) as error:
        raise damaged(source.file, str(error)) from error


def _struct(source: Input) -> st.StructType:
    try:
        return schema(_long_text(source))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(source.file, f"a schema: {error}") from error
