"""Positions in a connector's folder, topics that it creates, references that it resolves, and its keystores' files."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from file_sinks import file_sink
from hypothesis import given, strategies as st

from penstock.connect import topics
from penstock.connect.definition import read_all
from penstock.connect.sinks.record_sink import SinkTask
from penstock.connect.topics import TopicCreation
from penstock.connect.worker import keystores, settings as worker_settings
from penstock.connect.worker.checks import check
from penstock.connect.worker.offsets import KeptInFolder, Offsets, folder_of
from penstock.connect.worker.providers import Provided, Provider, ResolvedConfig
from penstock.connect.worker.settings import WorkerSettings
from penstock.errors import PenstockError


def kept(root: Path) -> Offsets:
    return Offsets(KeptInFolder(folder_of(root, "c")))


def folder_in(offsets: Offsets) -> Path:
    assert isinstance(offsets.positions, KeptInFolder)
    return offsets.positions.folder


def checkpoint(offsets: Offsets, table: str, batches: dict[int, Any], committed: list[int]) -> None:
    """A checkpoint as Spark writes it: planned batches, of which some are committed."""
    folder = folder_in(offsets) / table
    for part in ("offsets", "commits"):
        (folder / part).mkdir(parents=True)
    for number, offset in batches.items():
        (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offset)}')
    for number in committed:
        (folder / "commits" / str(number)).write_text("v1\n{}")
        (folder / "commits" / f".{number}.crc").write_bytes(b"\0")


def at(keyspace: str, table: str, offset: Any) -> dict[str, Any]:
    return {"partition": {"keyspace_name": keyspace, "table_name": table}, "offset": offset}


def test_a_position_is_the_end_of_the_last_committed_batch(tmp_path: Path) -> None:
    offsets = kept(tmp_path)
    assert offsets.read() == [] and offsets.read_to() is None
    # Numbers are compared as numbers, and a batch that is only planned does not count.
    batches = {9: {"planned": 1, "time": 9}, 10: {"planned": 1, "time": 10}, 11: {"planned": 1, "time": 11}}
    checkpoint(offsets, "ks.b", batches, [9, 10])
    checkpoint(offsets, "ks.a", {0: {"planned": 1, "time": 3}}, [])
    assert offsets.read() == [at("ks", "b", {"planned": 1, "time": 10})]
    assert offsets.read_to() == 10


def test_the_slowest_table_says_how_far_a_connector_has_read(tmp_path: Path) -> None:
    offsets = kept(tmp_path)
    checkpoint(offsets, "ks.a", {0: {"planned": 1, "time": 50}}, [0])
    checkpoint(offsets, "ks.b", {0: {"planned": 1, "time": 20, "fresh": 40}}, [0])
    (folder_in(offsets) / "ks.c.start").write_text("2020-01-01T00:00:00")
    # A table without a batch is not counted.
    assert offsets.read_to() == 40
    assert [each["partition"]["table_name"] for each in offsets.read()] == ["a", "b", "c"]


def test_a_position_that_a_user_sets_replaces_the_checkpoint(tmp_path: Path) -> None:
    offsets = kept(tmp_path)
    checkpoint(offsets, "ks.a", {0: {"planned": 1, "time": 50}}, [0])
    checkpoint(offsets, 'ks."B c"', {0: {"planned": 1, "time": 60}}, [0])
    tables = ["ks.a", 'ks."B c"', "ks.d"]
    changes = [at("ks", "a", {"time": 1_000_000}), at("ks", "d", {"time": "2020-01-01T00:00:00Z"})]
    offsets.alter(changes, tables)
    assert offsets.read() == [
        at("ks", "B c", {"planned": 1, "time": 60}),
        at("ks", "a", {"time": "1970-01-01T00:00:01+00:00"}),
        at("ks", "d", {"time": "2020-01-01T00:00:00+00:00"}),
    ]
    assert offsets.positions.starts() == {"ks.a": "1970-01-01T00:00:01+00:00", "ks.d": "2020-01-01T00:00:00+00:00"}
    offsets.alter([at("ks", "B c", None), at("ks", "d", None)], tables)
    assert [each["partition"]["table_name"] for each in offsets.read()] == ["a"]
    offsets.positions.forget_all()
    offsets.positions.forget_all()
    assert offsets.read() == [] and not folder_in(offsets).exists()


NAMES = st.text("ab./%\\2Eé \0", min_size=1, max_size=4)


@given(NAMES, NAMES)
def test_connectors_have_folders_of_their_own(first: str, second: str) -> None:
    root = Path("/positions")
    folders = [folder_of(root, name) for name in (first, second)]
    assert all(folder.parent == root and folder.name not in (".", "..") for folder in folders)
    assert (folders[0] == folders[1]) == (first == second)


CREATION = {
    "topic.creation.default.partitions": "2",
    "topic.creation.default.replication.factor": "-1",
    "topic.creation.default.cleanup.policy": "compact",
}


def wrong(**changes: str) -> dict[str, list[str]]:
    config = CREATION | {f"topic.creation.{name.replace('__', '.')}": text for name, text in changes.items()}
    return read_all(topics.definitions(config), config)[1]


@pytest.mark.usefixtures("spark")
def test_topics_are_the_broker_s_without_properties_of_their_creation() -> None:
    assert topics.definitions({"topic.prefix": "p"}) == [] and topics.rule({"topic.prefix": "p"}, "t") is None
    assert topics.rule(CREATION, "t") == TopicCreation(2, -1, {"cleanup.policy": "compact"})


@pytest.mark.parametrize(
    ("pattern", "fitting", "other"),
    [
        (r"\p{Alnum}+\.\p{Alpha}*", "p1.orders", "p_1.orders"),
        ("[a-z&&[^x]]+", "orders", "max"),
        (r"\Qp.orders\E", "p.orders", "p-orders"),
        ("(?i)P[.]orders", "p.ORDERS", "q.orders"),
    ],
)
@pytest.mark.usefixtures("spark")
def test_patterns_of_topics_are_javas(pattern: str, fitting: str, other: str) -> None:
    config = CREATION | {
        "topic.creation.groups": "g",
        "topic.creation.g.include": pattern,
        "topic.creation.g.partitions": "7",
    }
    found = [topics.rule(config, topic) for topic in (fitting, other)]
    assert [one and one.partitions for one in found] == [7, 2]


@pytest.mark.usefixtures("spark")
def test_the_first_group_that_matches_a_topic_creates_it() -> None:
    config = CREATION | {
        "topic.creation.groups": " large , small, default",
        "topic.creation.large.include": "p\\..*, q",
        "topic.creation.large.exclude": "p\\.tiny.*",
        "topic.creation.large.partitions": "30",
        "topic.creation.large.retention.ms": "5",
        "topic.creation.small.include": ".*",
        "topic.creation.small.replication.factor": "1",
    }
    assert read_all(topics.definitions(config), config)[1] == {}
    large = TopicCreation(30, -1, {"retention.ms": "5"})
    assert topics.rule(config, "p.orders") == large == topics.rule(config, "q")
    # Patterns match whole names; what a group does not set is the default's, except the topic's own settings.
    small = TopicCreation(2, 1, {})
    assert topics.rule(config, "qq") == topics.rule(config, "p.tiny1") == small


@pytest.mark.parametrize(
    ("changes", "name", "said"),
    [
        ({"groups": "g"}, "topic.creation.g.include", "Missing required configuration"),
        ({"groups": "g", "g__include": "["}, "topic.creation.g.include", "[ is not a regular expression"),
        (
            {"groups": "g", "g__include": "a", "g__exclude": "a,(b"},
            "topic.creation.g.exclude",
            "(b is not a regular expression",
        ),
        ({"default__partitions": "0"}, "topic.creation.default.partitions", "Value must be -1 or at least 1"),
        ({"groups": "g", "g__include": "a", "g__partitions": "-2"}, "topic.creation.g.partitions", "-1 or at least 1"),
        ({"default__replication.factor": "x"}, "topic.creation.default.replication.factor", "Not a number of type INT"),
    ],
)
@pytest.mark.usefixtures("spark")
def test_a_wrong_group_is_blamed_at_its_property(changes: dict[str, str], name: str, said: str) -> None:
    found = wrong(**changes)
    assert list(found) == [name] and said in found[name][0]


def test_a_topic_of_dead_letters_that_kafka_refuses_names_its_own_property(services: Any) -> None:
    config = file_sink(errors_deadletterqueue_topic_name=f"letters-{os.getpid()}")
    found = check(config, Provided(), ask=False)
    # Without a property it gets 3 replicas, as in Kafka Connect, and this Kafka has one broker.
    step = "correct errors.deadletterqueue.topic.replication.factor"
    with pytest.raises(PenstockError, match=rf"of dead letters cannot be created.*, 3 replicas.*{re.escape(step)}"):
        SinkTask("x", 0, ("t",), services.kafka, found.values, found.config).letters()


def test_a_topic_that_kafka_refuses_is_named_with_its_size(services: Any) -> None:
    name = f"refused-{os.getpid()}"
    with pytest.raises(PenstockError, match=rf"the topic cannot be created: .*\({name} at .*, 1 partitions, 99 repl"):
        topics.create(services.kafka, {}, name, TopicCreation(1, 99, {}), what="the topic", next="correct it")
    with pytest.raises(PenstockError, match="the topic cannot be created"):
        topics.create(
            services.kafka,
            {},
            name,
            TopicCreation(1, -1, {"no.such.setting": "1"}),
            what="the topic",
            next="correct it",
        )
    for partitions in (3, 5):
        # A topic that exists stays as it is.
        topics.create(
            services.kafka,
            {},
            name,
            TopicCreation(partitions, -1, {"cleanup.policy": "compact"}),
            what="the topic",
            next="correct it",
        )


def resolved(providers: dict[str, Provider], text: str, name: str = "scylla.user") -> ResolvedConfig:
    return Provided(providers).resolved({name: text})


def test_references_are_replaced_anywhere_in_a_value_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "${env:B}")
    monkeypatch.setenv("B", "b")
    monkeypatch.setenv("EMPTY", "")
    env = {"env": Provider("env")}
    found = resolved(env, "<${env:A}|${env:B}|${env:EMPTY}|${other:B}|${env:B>")
    # A value that looks like a reference is not resolved again, as in Kafka.
    assert found.config["scylla.user"] == "<${env:B}|b||${other:B}|${env:B>"
    assert found.unresolved["scylla.user"].startswith("<${env:A}") and found.refers("scylla.user")
    assert [value for _, _, value in found.references] == ["${env:B}", "b", ""]
    plain = resolved(env, "no ${reference}")
    assert plain.config == plain.unresolved and not plain.refers("scylla.user") and not plain.references


def test_a_reference_that_fails_leaves_the_value_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    (tmp_path / "props").write_bytes(b"k=v\xe4\n")
    (tmp_path / "folder").mkdir()
    providers = {"dir": Provider("dir"), "file": Provider("file"), "env": Provider("env")}
    # Properties files are Latin-1, as in Java; files of a folder are UTF-8.
    assert resolved(providers, f"${{file:{tmp_path}/props:k}}").config["scylla.user"] == "vä"
    for reference, why in (
        (f"${{dir:{tmp_path}:latin}}", "the file is not in its provider's format"),
        (f"${{dir:{tmp_path}:folder}}", "does not exist on the worker's machine, or may not be read"),
        (f"${{dir:{tmp_path}:none}}", "does not exist on the worker's machine, or may not be read"),
        (f"${{dir:{tmp_path}:}}", "does not exist"),
        (f"${{file:{tmp_path}/props:none}}", "does not exist"),
        (f"${{file:{tmp_path}:k}}", "does not exist"),
        ("${file::k}", "does not exist"),
        ("${file:\0:k}", "does not exist"),
        ("${env:NO_SUCH_VARIABLE}", "does not exist"),
    ):
        found = resolved(providers, reference)
        assert found.config["scylla.user"] == reference
        ((name, message),) = found.errors
        assert name == "scylla.user" and message.startswith(reference) and why in message


def test_a_link_does_not_lead_out_of_the_allowed_paths(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "in-other"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "secret").write_text("s")
    (inside / "link").symlink_to(outside)
    provider = Provider("dir", (inside,))
    assert provider.find(str(inside), "secret") == "s"
    for path, key in ((inside / "link", "secret"), (outside, "secret"), (inside, "../in-other/secret"), (inside, "..")):
        assert provider.find(str(path), key) is None


def test_names_of_variables_match_the_whole_pattern(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DB_USER", "MY_DB_USER", "DB_USER_2"):
        monkeypatch.setenv(name, name)
    file = tmp_path / "worker.properties"
    lines = [
        "config.providers=e",
        "config.providers.e.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "config.providers.e.param.allowlist.pattern=DB_[A-Z]+",
    ]
    provided = settings(file, *lines).provided
    found = {name: provided.resolved({"a": f"${{e:{name}}}"}) for name in ("DB_USER", "MY_DB_USER", "DB_USER_2")}
    assert [name for name, one in found.items() if not one.errors] == ["DB_USER"]


def settings(file: Path, *lines: str, servers: str | None = None, listen: str | None = None) -> WorkerSettings:
    file.write_text("\n".join(("bootstrap.servers=localhost:9092", *lines)))
    return worker_settings.read(file, servers, listen)


@pytest.mark.parametrize(
    ("listeners", "host", "port"),
    [
        ("http://127.0.0.1:8083", "127.0.0.1", 8083),
        ("http://[::1]:0", "::1", 0),
        (" http://worker-1:65535 , http://other:1", "worker-1", 65535),
        ("http://:8083", "0.0.0.0", 8083),
    ],
)
def test_a_worker_listens_at_the_first_listener(tmp_path: Path, listeners: str, host: str, port: int) -> None:
    made = settings(tmp_path / "f", f"listeners={listeners}")
    assert (made.host, made.port, made.allowed[0]) == (host, port, host)


@pytest.mark.parametrize(
    "listener", ["", "https://h:1", "h:1", "http://h", "http://h:65536", "http://h:x", "http://a b:1"]
)
def test_an_address_that_is_not_a_listener_is_refused(tmp_path: Path, listener: str) -> None:
    with pytest.raises(PenstockError, match=r"is not an address to listen at .*write it as http://127.0.0.1:8083"):
        settings(tmp_path / "f", listen=listener) if listener else settings(tmp_path / "f", "listeners=")


def test_arguments_replace_the_worker_s_file(tmp_path: Path) -> None:
    made = settings(tmp_path / "f", "listeners=http://h:1", servers="other:9093", listen="http://i:2")
    assert (made.servers, made.host, made.port) == ("other:9093", "i", 2)
    alone = worker_settings.read(None, "other:9093", None)
    assert (alone.host, alone.port, alone.topic) == ("127.0.0.1", 8083, "connect-configs")
    assert alone.provided.converters == dict.fromkeys(
        ("key.converter", "value.converter"), "org.apache.kafka.connect.json.JsonConverter"
    )
    with pytest.raises(PenstockError, match=r"no Kafka is named .*set bootstrap.servers, or give --servers"):
        worker_settings.read(None, None, None)
    with pytest.raises(PenstockError, match="there is no file"):
        worker_settings.read(tmp_path / "none", "other:9093", None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("key.converter=org.example.C", "key.converter cannot be org.example.C .*use one of: .*JsonConverter"),
        ("value.converter=", "value.converter cannot be empty .*use one of: .*JsonConverter"),
        ("config.providers=v", "config.providers.v.class cannot be '' .*use one of: .*EnvVarConfigProvider"),
        ("fetch.max.decompressed.bytes=0", "fetch.max.decompressed.bytes cannot be '0' .*a number of bytes above 0"),
        ("fetch.max.decompressed.bytes=1e9", "fetch.max.decompressed.bytes cannot be '1e9'"),
        ("security.protocol=TLS", "security.protocol"),
        ("sasl.mechanism=GSSAPI\nsecurity.protocol=SASL_SSL", "GSSAPI"),
    ],
)
def test_a_wrong_setting_of_the_worker_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        settings(tmp_path / "f", line).client()


def test_the_producer_has_the_worker_s_security_and_its_own_settings(tmp_path: Path) -> None:
    lines = ["security.protocol=PLAINTEXT", "producer.linger.ms=5", "producer.security.protocol=SSL", "offset.x=1"]
    made = settings(tmp_path / "f", *lines, "fetch.max.decompressed.bytes=1000", "config.storage.topic=mine")
    assert made.producer == {"security.protocol": "SSL", "linger.ms": "5"}
    assert (made.max_decompressed, made.topic) == (1000, "mine")
    assert made.client() == {"tls": None, "authenticate": None}


def test_a_keystore_s_file_is_written_whole_by_many_at_once(tmp_path: Path) -> None:
    file, text = tmp_path / "store.pem", "-----BEGIN CERTIFICATE-----\n" * 1000
    together, problems = threading.Barrier(8), []

    def write() -> None:
        together.wait()
        try:
            for _ in range(50):
                keystores._write(file, text)
                if file.read_text() != text:
                    problems.append("a part of the file")
        except OSError as error:
            problems.append(str(error))

    writers = [threading.Thread(target=write) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert problems == []
    assert [path.name for path in tmp_path.iterdir()] == ["store.pem"]
    assert file.stat().st_mode & 0o777 == 0o600
