"""Transforms that are classes of Python: what they may change, where their code comes from, and what is refused."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from change_frames import INSERT, PARTITION_DELETE, Table
from file_sinks import file_sink
from pyspark.sql import SparkSession
from smt_chains import EXTRACT, TOMBSTONE, Sent, config_of, sent

from penstock.codec.connect_schema import Schema
from penstock.connect.records.deserializers import JsonBytes, RawRecord, TextBytes
from penstock.connect.records.record import NOTHING, ConnectRecord, NoValue, Part
from penstock.connect.sinks.retries import Retries
from penstock.connect.sinks.task import decoded, transformed
from penstock.connect.transforms.python_classes import PythonClass
from penstock.connect.transforms.record_chain import OfClass, RecordTransform
from penstock.connect.transforms.sink_chain import chain
from penstock.connect.transforms.source_stage import RecordStage, plan
from penstock.connect.transforms.steps import Shapes
from penstock.connect.worker.checks import CheckedConfig, check
from penstock.connect.worker.providers import Provided, Provider
from penstock.connect.worker.settings import read
from penstock.errors import PenstockError
from penstock.process.secret_settings import HIDDEN

CODE = """
class Mark:
    def configure(self, properties):
        self.text = properties["text"]

    def apply(self, record):
        value = record.value.value
        if value["n"] == 0:
            return None
        changed = record.value._replace(value={**value, "by": 12 // (value["n"] - 2)})
        return record._replace(topic=f"{record.topic}-{self.text}", value=changed)


class Wrong:
    def configure(self, properties):
        pass

    def apply(self, record):
        return eval(record.value.value, {"record": record, "set": set})


class Half:
    def configure(self, properties):
        pass


function = len
"""
Write = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path) -> Write:
    """Writes a module with a new name in the folder of plugins; returns the name."""

    def write(text: str) -> str:
        name = f"plugin_{uuid.uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def configured(kind: str, folder: Path | str = "", **options: str) -> CheckedConfig:
    config = file_sink(value_converter="JsonConverter", transforms="own", transforms_own_type=kind)
    config |= {f"transforms.own.{name}": text for name, text in options.items()}
    return check(config, Provided({"env": Provider("env")}, {}, str(folder)), ask=False)


def record(value: Any, offset: int = 0) -> ConnectRecord:
    return ConnectRecord("t", 3, offset, 7, NOTHING, Part(None, value))


def test_a_class_changes_drops_and_refuses_records(module: Write, tmp_path: Path) -> None:
    found = configured(f"python:{module(CODE)}.Mark", tmp_path, text="a")
    assert not found.messages and not found.unknown
    made = pickle.loads(pickle.dumps(chain(found.config)))  # as Spark's tasks get it
    assert made.chooses_topics
    raw = [RawRecord("t", 3, n, 7, None, b'{"n": %d}' % n, ()) for n in range(4)]
    first, second, third = transformed(decoded(raw, TextBytes(), JsonBytes(False)), made.start())
    assert isinstance(first, ConnectRecord) and isinstance(third, ConnectRecord)
    assert (first.topic, first.place, first.value.value) == ("t-a", ("t", 3, 1), {"n": 1, "by": -12})
    assert third.value.value == {"n": 3, "by": 12}
    assert not isinstance(second, ConnectRecord) and second.stage == "TRANSFORMATION"
    assert second.record.offset == 2
    assert second.reason.startswith("the transform own (python:plugin_")
    assert second.reason.endswith(".Mark) failed: ZeroDivisionError: integer division or modulo by zero")


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ("7", "apply returned int, and must return a record or None"),
        ("record._replace(value=7)", "a key, a value or a header that is int"),
        ("record._replace(headers=(('h', 7),))", "a key, a value or a header that is int"),
        ("record._replace(topic=7)", "whose topic is no text"),
        ("record._replace(key=record.key._replace(value=[{1: set()}]))", "a value with set, which no converter reads"),
        ("record._replace(value=record.value._replace(schema={'type': 'x'}))", "its schema has the unknown type x"),
        ("[a for a in 7]", "TypeError: 'int' object is not iterable"),
    ],
)
def test_what_is_no_record_is_a_bad_one(module: Write, tmp_path: Path, returned: str, why: str) -> None:
    step = chain(configured(f"python:{module(CODE)}.Wrong", tmp_path).config).start()
    with pytest.raises(NoValue, match=why):
        step(record(returned))


def test_an_exception_says_whether_trying_again_can_help(module: Write, tmp_path: Path) -> None:
    text = """
class Busy(Exception):
    retriable = True

class Asks:
    def configure(self, properties):
        self.left = 1

    def apply(self, record):
        self.left -= 1
        if self.left >= 0:
            raise Busy("not now")
        return record
"""
    made = chain(configured(f"python:{module(text)}.Asks", tmp_path).config)
    with pytest.raises(NoValue, match="failed: Busy: not now"):
        made.start()(record(1))
    assert replace(made, retries=Retries(60, 0.001)).start()(record(1)) == record(1)


def test_a_record_stays_where_it_was_read(module: Write, tmp_path: Path) -> None:
    step = chain(configured(f"python:{module(CODE)}.Wrong", tmp_path).config).start()
    changed = step(record("record._replace(partition=9, offset=9, topic='y', origin='z')"))
    assert changed is not None and changed.place == ("t", 3, 0)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("python:{}.Gone", "has no class Gone. Next: correct the type, or the module"),
        ("python:{}.function", "has no class function"),
        ("python:{}.Half", "has no method apply. Next: give it configure(self, properties) and apply(self, record)"),
        ("python:{}.Mark", "cannot be configured: KeyError: 'text'"),
        ("python:{}", "is not package.module.Class"),
        ("python:{}.a b.C", "is not package.module.Class"),
        ("python:{}_other.Mark", "no module plugin_"),
        ("python:json.JSONEncoder", "json is another module of this process"),
        ("python:sys.Mark", "sys is another module of this process"),
        ("python:antigravity.Mark", "antigravity is another module of this process"),
        # Java's names are never imported.
        ("{}.Mark", "could not be found. Known classes"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_with_its_reason(
    module: Write, tmp_path: Path, kind: str, why: str
) -> None:
    errors = configured(kind.format(module(CODE)), tmp_path).errors
    assert set(errors) == {"transforms.own.type"} and why in errors["transforms.own.type"][0], errors


@pytest.mark.parametrize(
    ("text", "why"),
    [("1 +", "SyntaxError"), ("import gone_module", "ModuleNotFoundError"), ("raise SystemExit", "SystemExit")],
)
def test_a_module_that_cannot_be_imported_is_refused(module: Write, tmp_path: Path, text: str, why: str) -> None:
    (error,) = configured(f"python:{module(text)}.Mark", tmp_path).errors["transforms.own.type"]
    assert f"cannot be imported: {why}" in error


def test_code_comes_only_from_the_worker_s_own_folders(
    module: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"python:{module('raise SystemExit')}.Mark"
    (error,) = configured(name).errors["transforms.own.type"]
    assert "is code that this worker may not run. Next: set plugin.path in the worker's file" in error
    config = {"plugin.path": str(tmp_path), "transforms": "own", "transforms.own.type": name}
    assert "plugin.path" not in Provided().resolved(config).config
    other = tmp_path / "other"
    other.mkdir()
    assert Provided(plugin_path=str(other)).resolved(config).config["plugin.path"] == str(other)
    # The worker's file: folders that are not there are left out, as files of Kafka's workers name such.
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "worker.properties"
    file.write_text(f"bootstrap.servers=h:1\nplugin.path=/usr/share/java-that-is-not-there, other,{tmp_path}\n")
    assert read(file, None, None).provided.plugin_path == f"{other},{tmp_path}"


def test_secrets_of_options_are_resolved_and_not_shown(
    module: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSH", "hush-hush")
    found = configured(f"python:{module(CODE)}.Mark", tmp_path, text="${env:HUSH}", password="pa55")
    assert not found.messages and found.shown["transforms.own.password"] == HIDDEN
    step = chain(found.config).start()
    changed = step(record({"n": 1}))
    assert changed is not None and changed.topic == "t-hush-hush"
    text = CODE.replace('properties["text"]', "int(properties['text'])")
    (error,) = configured(f"python:{module(text)}.Mark", tmp_path, text="${env:HUSH}").errors["transforms.own.type"]
    assert "hush-hush" not in error and "invalid literal" in error


def test_a_predicate_selects_the_records_of_a_class(module: Write, tmp_path: Path) -> None:
    more = {"predicate": "empty", "negate": "true"}
    found = configured(f"python:{module(CODE)}.Mark", tmp_path, text="a", **more)
    config = found.config | {"predicates": "empty", "predicates.empty.type": "RecordIsTombstone"}
    step = chain(config).start()
    assert step(record(None)) == record(None)
    changed = step(record({"n": 1}))
    assert changed is not None and changed.topic == "t-a"


# Sources.

SOURCE = """
class Upper:
    def configure(self, properties):
        self.drop = int(properties.get("drop", "0"))
        self.code = properties.get("code", "")

    def apply(self, record):
        row = record.value.value
        if self.code:
            return eval(self.code, {"record": record, "row": row})
        if row["id"] == self.drop:
            return None
        row = {**row, "name": row["name"] and row["name"].upper()}
        return record._replace(
            value=record.value._replace(value=row), headers=(*record.headers, ("by", Part(None, {"n": row["id"]})))
        )


from penstock.connect.records.json_data import Part
"""
PEOPLE = Table({"id": "int", "m": "map<text, int>", "name": "text"}, ["id"], name="shop.people")


def people(spark: SparkSession, folder: Path, name: str, **options: str) -> list[Sent]:
    """What becomes of two rows and a delete."""
    own = {"type": f"python:{name}.Upper", **options}
    changes = [{"kind": INSERT, "key": (id,), "after": (id, {"k": id}, text)} for id, text in ((1, "a"), (2, None))]
    changes.append({"kind": PARTITION_DELETE, "key": (3,), "before": (3, {}, "c")})
    unwrapped = EXTRACT | {"delete.tombstone.handling.mode": "tombstone"}
    # The class itself fails for a record without a value.
    chosen = own | {"predicate": "empty", "negate": "true"}
    config = config_of(unwrapped, chosen, empty=TOMBSTONE) | {"plugin.path": str(folder)}
    return sent(spark, PEOPLE, changes, config)


def test_a_source_s_class_changes_values_and_headers_and_drops_records(
    spark: SparkSession, module: Write, tmp_path: Path
) -> None:
    first, deleted = people(spark, tmp_path, module(SOURCE), drop="2")
    assert (deleted.key, deleted.value, deleted.headers) == ({"id": 3}, None, [])
    assert first.value == {"id": 1, "m": [{"key": "k", "value": 1}], "name": "A"} and first.key == {"id": 1}
    assert first.headers == [("by", '{"n":1}')]


FIELDS = [{"field": "id", "type": "int32"}, {"field": "tags", "type": "array", "items": {"type": "string"}}]
ROWS: Schema = {"type": "struct", "fields": FIELDS}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("1 // 0", "ZeroDivisionError"),
        ("record._replace(topic='x')", "cannot change the topic: use RegexRouter"),
        ("record._replace(value=record.value._replace(schema=None))", "cannot change the schema of a value"),
        ("record._replace(value=record.value._replace(value={**row, 'x': 1}))", "cannot add a field, such as x"),
        ("record._replace(value=record.value._replace(value={'tags': 'x'}))", "its array is str"),
        ("record._replace(value=record.value._replace(value={'id': 'x'}))", "its values do not fit its schema"),
    ],
)
def test_what_a_source_s_class_cannot_change_is_a_bad_record(
    module: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: str, why: str
) -> None:
    given = pa.array([{"headers": None, "value0": {"id": 1, "tags": ["a"]}}])
    kind = PythonClass(f"{module(SOURCE)}.Upper", (str(tmp_path),), {"code": code})

    def stage(tolerant: bool) -> RecordStage:
        own = RecordTransform("own", OfClass(f"python:{kind.name}", {}, kind))
        made = plan([own], Shapes("t", (), (ROWS,)), tolerant=tolerant)
        assert made is not None
        return made

    assert stage(True).changed(given).to_pylist() == [None]
    (line,) = caplog.messages
    assert line.startswith("left out a record for t: ") and "own (python:plugin_" in line and why in line
    with pytest.raises(
        PenstockError, match=rf"cannot be transformed: .*own \(python:plugin_\w+.Upper\).*{why}.*a record for topic t"
    ):
        stage(False).changed(given)
