"""What a worker reads: its properties file, references to values in other places, and Connect's own topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.codec.text_formats import Json
from penstock.connect.group.group_settings import GroupSettings, TopicSettings
from penstock.connect.records.converters import converter
from penstock.connect.source.properties import CLASS
from penstock.connect.worker import settings as worker_settings
from penstock.connect.worker.checks import check
from penstock.connect.worker.connector_store import StoredConnector, connectors
from penstock.connect.worker.offsets import KeptInFolder, folder_of
from penstock.connect.worker.providers import Provided
from penstock.errors import PenstockError
from penstock.wire.group_member import GroupTimes

KAFKA = "org.apache.kafka.common.config.provider."
JSON = "org.apache.kafka.connect.json.JsonConverter"
RIGHT = {"name": "n", "connector.class": CLASS, "topic.prefix": "p", "scylla.cluster.ip.addresses": "127.0.0.1:9042"}
RIGHT |= {"scylla.table.names": "ks.t"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "worker.properties"


def worker(file: Path, *lines: str) -> worker_settings.WorkerSettings:
    file.write_text("\n".join(("bootstrap.servers=localhost:9092", *lines)))
    return worker_settings.read(file, None, None)


def test_files_are_read_as_java_reads_them(file: Path, tmp_path: Path) -> None:
    lines = r"""
        # a comment that ends in a backslash \
        pw=a\\b\:c\=d
        colon: two
        space three
        uni=\u00e9
        long=a\
             b
        twice=a\\
        next=n"""
    (tmp_path / "secrets").write_text(lines)
    made = worker(file, "config.providers=my-file", f"config.providers.my-file.class={KAFKA}FileConfigProvider")
    expected = {
        "pw": r"a\b:c=d",
        "colon": "two",
        "space": "three",
        "uni": "é",
        "long": "ab",
        "twice": "a\\",
        "next": "n",
    }
    asked = {key: f"<${{my-file:{tmp_path / 'secrets'}:{key}}}>" for key in expected}
    found = made.provided.resolved(asked)
    assert not found.errors
    assert {key: found.config[key] for key in expected} == {key: f"<{text}>" for key, text in expected.items()}


def test_the_worker_s_own_file_may_refer_to_values(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock")
    monkeypatch.setenv("LINGER", "17")
    lines = "config.providers=env", f"config.providers.env.class={KAFKA}EnvVarConfigProvider"
    assert worker(file, *lines, "producer.linger.ms=${env:LINGER}").producer["linger.ms"] == "17"
    assert worker(file, *lines, "producer.acks=all").producer["acks"] == "all"
    # The sinks of connectors tell which client writes.
    assert worker(file, *lines, "producer.max.block.ms=1000").producer and not caplog.messages
    for line in ("producer.acks=1", "producer.linger.sm=5", "producer.sasl.pasword=hush"):
        with pytest.raises(
            PenstockError, match=rf"{line.partition('=')[0]} is refused: .*{file.name}.*Next: "
        ) as raised:
            worker(file, *lines, line)
        assert "hush" not in str(raised.value)
    with pytest.raises(
        PenstockError, match=r"producer's properties .*no use for sasl.password.*security.protocol"
    ) as raised:
        worker(file, *lines, "producer.sasl.password=hush")
    assert "hush" not in str(raised.value)
    with pytest.raises(PenstockError, match=r"producer.linger.ms: \$\{env:NONE\} does not exist"):
        worker(file, *lines, "producer.linger.ms=${env:NONE}")
    with pytest.raises(PenstockError, match=r"servers is not a list of host:port: 'kafka'.*correct bootstrap.servers"):
        worker(file, "bootstrap.servers=kafka")
    with pytest.raises(PenstockError, match="not a Java properties file"):
        worker(file, r"broken=\u00g")
    with pytest.raises(PenstockError, match="the file has more than 1048576 bytes"):
        worker(file, "#" * (1 << 20))


def test_names_of_the_worker_are_those_of_its_file(file: Path) -> None:
    made = worker(
        file,
        "listeners=http://worker-1:8083",
        "rest.advertised.host.name=connect.example.org",
        "penstock.allowed.hosts=a.example, *.b.example",
    )
    assert made.allowed == ("worker-1", "connect.example.org", "a.example", "*.b.example")


def test_a_group_has_the_topics_and_times_of_kafka_connect_s_workers(file: Path) -> None:
    assert worker(file, "offset.storage.topic=o").group is None
    made = worker(file, "group.id=g", "fetch.max.decompressed.bytes=1000").group
    assert made == GroupSettings(
        "g",
        TopicSettings("connect-configs", 1, -1),
        TopicSettings("connect-offsets", 25, -1),
        TopicSettings("connect-status", 5, -1),
        GroupTimes(10, 3, 60),
        1000,
    )
    storage = [f"{kind}.storage.{name}" for kind in ("config", "offset", "status") for name in ("topic=" + kind,)]
    replicas = [f"{kind}.storage.replication.factor=3" for kind in ("config", "offset", "status")]
    times = ("session.timeout.ms=6000", "heartbeat.interval.ms=500", "rebalance.timeout.ms=30000")
    made = worker(file, "group.id=g", *storage, *replicas, "offset.storage.partitions=50", *times).group
    assert made and (made.configs, made.states) == (TopicSettings("config", 1, 3), TopicSettings("status", 5, 3))
    assert (made.positions, made.times) == (TopicSettings("offset", 50, 3), GroupTimes(6, 0.5, 30))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("session.timeout.ms=soon", "session.timeout.ms cannot be 'soon'"),
        ("heartbeat.interval.ms=10000", r"heartbeat.interval.ms is not below session.timeout.ms: 10 s and 10 s"),
        ("offset.storage.partitions=0", "offset.storage.partitions cannot be '0'"),
        ("status.storage.replication.factor=-2", "status.storage.replication.factor cannot be '-2'"),
    ],
)
def test_wrong_settings_of_a_group_are_named(file: Path, line: str, why: str) -> None:
    with pytest.raises(PenstockError, match=f"{why}.*Next: "):
        worker(file, "group.id=g", line)


def test_what_may_not_be_read_is_not_there(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir()
    for place in ("open/in", "out"):
        (tmp_path / place).write_text("k=v")
    monkeypatch.setenv("SCYLLA_USER", "ann")
    monkeypatch.setenv("OTHER", "secret")
    kinds = {"env": "EnvVarConfigProvider", "file": "FileConfigProvider", "dir": "DirectoryConfigProvider"}
    made = worker(
        file,
        f"config.providers={','.join(kinds)}",
        *(f"config.providers.{name}.class={KAFKA}{kind}" for name, kind in kinds.items()),
        *(f"config.providers.{name}.param.allowed.paths=/none, {tmp_path}/open" for name in ("file", "dir")),
        "config.providers.env.param.allowlist.pattern=SCYLLA_.*",
    ).provided
    allowed = {"e": "${env:SCYLLA_USER}", "f": f"${{file:{tmp_path}/open/in:k}}", "d": f"${{dir:{tmp_path}/open:in}}"}
    assert not made.resolved(allowed).errors
    for reference in (
        "${env:OTHER}",
        f"${{file:{tmp_path}/out:k}}",
        f"${{file:{tmp_path}/open/../out:k}}",
        f"${{dir:{tmp_path}:out}}",
        f"${{dir:{tmp_path}/open:../out}}",
    ):
        found = made.resolved({"topic.prefix": reference})
        assert found.config["topic.prefix"] == reference
        assert "does not exist on the worker's machine, or may not be read" in found.errors[0][1]
    with pytest.raises(PenstockError, match=r"allowlist.pattern cannot be '\['"):
        worker(
            file,
            "config.providers=env",
            f"config.providers.env.class={KAFKA}EnvVarConfigProvider",
            "config.providers.env.param.allowlist.pattern=[",
        )


@pytest.mark.parametrize(
    ("own", "schemas"),
    [
        ({}, False),
        ({"value.converter": JSON}, True),
        ({"value.converter": " JsonConverter "}, True),
        ({"value.converter": "Json", "value.converter.schemas.enable": "false"}, False),
        # An option without its class is ignored.
        ({"value.converter.schemas.enable": "true"}, False),
    ],
)
def test_options_of_a_converter_stand_where_its_class_does(own: dict[str, str], schemas: bool) -> None:
    defaults = {"value.converter": JSON, "value.converter.schemas.enable": "false", "key.converter": JSON}
    checked = check({**RIGHT, **own}, Provided({}, defaults), ask=False)
    assert not checked.messages
    assert converter("value", checked.config) == Json(schemas)


def test_values_are_handed_on_as_they_are_defined() -> None:
    given = {"exactly.once.support": "REQUIRED", "cdc.output.format": "Advanced", "skipped.operations": "d,u"}
    values = check(RIGHT | given, Provided({}, {"key.converter": JSON, "value.converter": JSON}), ask=False).values
    assert values["exactly.once.support"] == "required"
    assert (values["cdc.output.format"], values["skipped.operations"]) == ("advanced", ["d", "u"])
    for name, text in (("skipped.operations", "D"), ("name", "a\nb"), ("tasks.max", "١٢"), ("tasks.max", "1_0")):
        assert name in check(RIGHT | {name: text}, Provided(), ask=False).errors


def record(kind: str, said: Any) -> tuple[str, bytes | None]:
    return kind, None if said is None else json.dumps(said).encode()


def test_states_count_wherever_they_stand_in_the_topic() -> None:
    config = {"properties": {"a": "1"}}
    paused, stopped = ({"state": "PAUSED", **more} for more in ({}, {"state.v2": "STOPPED"}))
    found = connectors(
        [
            record("target-state-early", stopped),
            record("connector-early", config),
            record("connector-late", config),
            record("target-state-late", paused),
            record("connector-again", config),
            record("target-state-again", paused),
            record("target-state-again", None),
            record("connector-gone", config),
            record("connector-gone", None),
            ("session-key", b"\x00 no JSON"),
        ]
    )
    states = {"early": "STOPPED", "late": "PAUSED", "again": "STARTED"}
    assert found == {name: StoredConnector({"a": "1"}, state) for name, state in states.items()}


@pytest.mark.parametrize(
    "value",
    [
        b"no JSON",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"properties": [1]}',
        b'{"properties": {"a": 1}}',
        b'{"properties": {"a": "\\ud800"}}',
    ],
)
def test_a_record_that_is_no_configuration_stops_no_other_connector(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    good = record("connector-good", {"properties": {"a": "1"}})
    assert connectors([("connector-bad", value), good, ("target-state-good", value)]) == {
        "good": StoredConnector({"a": "1"})
    }
    assert "ignored the record 'connector-bad' of the configurations" in caplog.text


@pytest.mark.parametrize("name", [".", "..", "...", "a/b", "%2E"])
def test_to_forget_one_connector_touches_no_other(tmp_path: Path, name: str) -> None:
    root = tmp_path / "data" / "connectors"
    others = [root / "orders" / "ks.t", tmp_path / "data" / "more"]
    for folder in others:
        folder.mkdir(parents=True)
    (folder_of(root, name) / "ks.t").mkdir(parents=True)
    KeptInFolder(folder_of(root, name)).forget_all()
    assert all(folder.is_dir() for folder in others)
    assert [path.name for path in root.iterdir()] == ["orders"]
