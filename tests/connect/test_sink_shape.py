"""What is true of every sink connector: its modules, settings and destination, and what becomes of bad records."""

from __future__ import annotations

import ast
import contextlib
import importlib
import logging
import pickle
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pyarrow as pa
import pytest
from connect_memory import SMALLEST

from penstock.connect.records.deserializers import JsonBytes, RawRecord
from penstock.connect.records.record import ConnectRecord
from penstock.connect.sinks import properties as of_any_sink
from penstock.connect.sinks.destination import Bad, Destination
from penstock.connect.sinks.replication import properties as replication
from penstock.connect.sinks.replication.task import BadEvents
from penstock.connect.sinks.task import SinkWriter
from penstock.connect.worker import plugins
from penstock.connect.worker.checks import check
from penstock.connect.worker.plugins import PLUGINS, ConnectorPlugin
from penstock.connect.worker.providers import Provided
from penstock.errors import PenstockError
from penstock.query.packed_rows import packed

SINKS = Path(of_any_sink.__file__).parent
JSON = "org.apache.kafka.connect.json.JsonConverter"
COMMON = {"name": "x", "key.converter": JSON, "value.converter": JSON}
REPEATED = {
    plugins.SINK.name: "test_restart.py::test_a_killed_worker_loses_no_record_of_a_sink",
    plugins.DATASTAX_SINK.name: "test_sink_connectors.py::test_a_batch_that_is_written_again_leaves_lists_as_they_are",
    plugins.JDBC_SINK.name: "test_jdbc_rows.py::test_a_transaction_begins_again_when_its_connection_is_lost",
    plugins.FILE_STREAM_SINK.name: "test_file_stream_sink.py::test_a_full_disk_leaves_no_half_of_a_batch",
    plugins.FILES_SINK.name: "test_files_sink.py::test_whatever_batches_are_repeated_each_record_is_there_once",
    plugins.REPLICATION_SINK.name: "test_replication_connectors.py::test_a_table_is_kept_equal_to_another",
}
"""By class: the test of a batch that is interrupted or repeated, below tests/connect."""
NAMES = ("properties", "destination", "writer", "tables", "values")
LACKING = {
    ("files", "tables"): "a topic has a folder: folders.py says which, store.py writes it",
    ("files", "values"): "a value is as the format of the file has it: formats.py",
    **{("replication", name): "penstock.replicate applies the events: task.py" for name in NAMES[1:]},
}
"""Modules that a folder of a sink does not have, and why."""
OF_RECORDS = [plugin for plugin in PLUGINS if plugin.destination]
of_records = pytest.mark.parametrize("plugin", OF_RECORDS, ids=lambda plugin: plugin.names[-1])
every_sink = pytest.mark.parametrize(
    "plugin", [plugin for plugin in PLUGINS if plugin.type == "sink"], ids=lambda plugin: plugin.names[-1]
)


def configured(plugin: ConnectorPlugin, **changes: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of the smallest configuration with these changes, and the configuration; `_` stands for a dot."""
    more = {name.replace("_", "."): text for name, text in changes.items()}
    config = {"connector.class": plugin.name, **COMMON, **SMALLEST[plugin.name], **more}
    checked = check(config, Provided(), ask=False)
    assert not checked.messages, checked.messages
    return checked.values, config


def destination(plugin: ConnectorPlugin, **changes: str) -> Destination:
    assert plugin.destination
    return plugin.destination(*configured(plugin, **changes))


def test_each_folder_has_the_five_modules_or_a_reason() -> None:
    folders = [folder for folder in SINKS.iterdir() if (folder / "__init__.py").exists()]
    lacking = {(folder.name, name) for folder in folders for name in NAMES if not (folder / f"{name}.py").exists()}
    assert lacking == set(LACKING)


def test_each_class_is_in_the_tables_of_this_file() -> None:
    classes = {plugin.name for plugin in PLUGINS if plugin.type == "sink"}
    assert classes == set(SMALLEST) - {plugins.SOURCE.name} == set(REPEATED)


@every_sink
def test_interrupted_batches_have_a_test(plugin: ConnectorPlugin) -> None:
    file, test = REPEATED[plugin.name].split("::")
    tree = ast.parse((Path(__file__).parent / file).read_text())
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@every_sink
def test_properties_are_those_of_connect_and_its_own(plugin: ConnectorPlugin) -> None:
    names = [each.name for each in plugin.properties()]
    assert len(set(names)) == len(names)
    assert {each.name for each in of_any_sink.of_connect(plugin.names)} <= set(names)
    assert set(of_any_sink.FREE) <= set(plugin.free)
    for name in plugin.names:
        assert plugins.plugin_named(name) is plugin


@every_sink
@pytest.mark.parametrize("name", [".", "..", "a b", "a" * 250])
def test_what_no_topic_can_be_called_is_refused(plugin: ConnectorPlugin, name: str) -> None:
    config = {"connector.class": plugin.name, **COMMON, **SMALLEST[plugin.name]}
    for changed in ("topics", "errors.deadletterqueue.topic.name"):
        assert set(check({**config, changed: name}, Provided(), ask=False).errors) == {changed}


def fields_of_properties() -> Iterator[tuple[str, str]]:
    """The names of the classes of settings, with each property that a field names."""
    for module in walk_packages([str(SINKS)], "penstock.connect.sinks."):
        for kind in vars(importlib.import_module(module.name)).values():
            if isinstance(kind, type) and is_dataclass(kind):
                names = (each.metadata.get("properties", ()) for each in fields(kind))
                yield from ((kind.__name__, name) for name in chain.from_iterable(names))


def test_each_field_names_a_property_that_a_connector_has() -> None:
    """A field whose property no connector has would silently keep its default."""
    known = {each.name for plugin in PLUGINS for each in plugin.properties()}
    for file in SINKS.rglob("*.toml"):
        names = (name for group in tomllib.loads(file.read_text()).values() for name in group)
        known |= {name.rpartition(">.")[2] for name in names}
    named = set(fields_of_properties())
    assert {kind for kind, _ in named} >= {"CqlSettings", "Route", "JdbcSettings", "FilesSettings"}
    assert {(kind, name) for kind, name in named if name not in known} == set()


@of_records
def test_a_destination_is_the_same_wherever_it_is_made(plugin: ConnectorPlugin) -> None:
    """A task that starts again, here or elsewhere, goes on with its checkpoint."""
    made, again = destination(plugin), destination(plugin)
    for any_topic in (False, True):
        assert made.identity("t", any_topic=any_topic) == again.identity("t", any_topic=any_topic)
        assert all(made.identity("t", any_topic=any_topic))
    assert pickle.loads(pickle.dumps(made)).identity("t", any_topic=False) == made.identity("t", any_topic=False)


@of_records
def test_an_address_has_no_login(plugin: ConnectorPlugin) -> None:
    assert "hush" not in destination(plugin).address + repr(destination(plugin))


@of_records
def test_chunks_have_records(plugin: ConnectorPlugin) -> None:
    chunks = destination(plugin).chunks
    assert chunks is None or (chunks.records > 0 and (chunks.wait is None or chunks.wait > timedelta(0)))


@of_records
def test_connect_s_tolerance_counts(plugin: ConnectorPlugin) -> None:
    assert destination(plugin).tolerance == "fail"
    assert destination(plugin, errors_tolerance="all").tolerance == "log"


@dataclass
class Letters:
    """Keeps dead letters."""

    sent: list[tuple[RawRecord, Bad]] = field(default_factory=list)

    def send(self, letters: Sequence[tuple[RawRecord, Bad]]) -> None:
        self.sent += letters


@dataclass
class Refusing:
    """A writer that takes records, but for the one with the offset 1."""

    written: list[int] = field(default_factory=list)

    def write(self, records: Sequence[ConnectRecord], *, until_bad: bool = False) -> list[Bad]:
        bad = [Bad(record, "it does not fit") for record in records if record.offset == 1]
        end = bad[0].record.offset if bad and until_bad else len(records)
        self.written += [record.offset for record in records[:end] if record.offset != 1]
        return bad


def page() -> pa.RecordBatch:
    """Three records of a topic, of which the last one is not JSON."""
    return pa.record_batch(
        {
            "partition": pa.array([0] * 3, pa.int32()),
            "offset": pa.array([0, 1, 2]),
            "timestamp": pa.array([0] * 3, pa.timestamp("us", "UTC")),
            "key": [b"{}"] * 3,
            "value": [b"{}", b"{}", b"{"],
            "headers": pa.nulls(3, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        }
    )


def write_page(plugin: ConnectorPlugin, monkeypatch: pytest.MonkeyPatch, errors: str) -> tuple[Refusing, Letters]:
    """Writes `page` as a task of the connector does, with a writer that refuses a record in place of its own."""
    own, writer, letters = destination(plugin, errors_tolerance=errors), Refusing(), Letters()
    monkeypatch.setattr(type(own), "writer", lambda self, patience, *, again: contextlib.nullcontext(writer))
    sink: Any = SinkWriter(own, JsonBytes(False), JsonBytes(False), letters=letters, topic="t")  # type: ignore[arg-type]
    list(sink(packed(iter([page()]))))
    return writer, letters


@of_records
def test_bad_records_become_dead_letters_and_the_others_are_written(
    plugin: ConnectorPlugin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        writer, letters = write_page(plugin, monkeypatch, "all")
    assert writer.written == [0]
    assert [(raw.offset, bad.stage) for raw, bad in letters.sent] == [(1, "TASK_PUT"), (2, "VALUE_CONVERTER")]
    assert [message.split(":")[0] for message in caplog.messages] == [
        "left out t, 0, offset 1",
        "left out t, 0, offset 2",
    ]


@of_records
def test_a_bad_record_ends_the_task_where_it_is_not_tolerated(
    plugin: ConnectorPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PenstockError, match="a record cannot be written: it does not fit") as failure:
        write_page(plugin, monkeypatch, "none")
    assert failure.value.where == "topic t, partition 0, offset 1"


@pytest.mark.parametrize("errors", ["none", "all"])
def test_events_that_cannot_be_applied_are_treated_alike(errors: str) -> None:
    """The sink of a replication has a task of its own, and the same rules."""
    settings = replication.settings(*configured(plugins.REPLICATION_SINK, errors_tolerance=errors))
    letters: Any = Letters()
    bad = BadEvents(settings.tolerated, letters, None, "t-value", settings.shows)
    problem = {
        "topic": "t",
        "partition": 0,
        "offset": 1,
        "reason": "no event",
        "key": None,
        "value": b"",
        "headers": None,
    }
    failing = pytest.raises(PenstockError, match="a record cannot be applied: no event")
    with contextlib.nullcontext() if errors == "all" else failing:
        bad.leave_out(pa.array([problem]))
    assert [raw.offset for raw, _ in letters.sent] == ([1] if errors == "all" else [])
