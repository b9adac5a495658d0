"""`--command-config FILE`: what the file may say; commands and the console at a Kafka that requires TLS and SASL."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from console_process import ConsoleProcess, console
from hypothesis import HealthCheck, given, settings, strategies as st
from java_kafka import jvm_of
from kafka_cluster import KafkaCluster
from kafka_topics import new_topic
from secure_kafka import PASSWORD, certificate, secure_kafka

from penstock.cli import command_config
from penstock.console.reading.run_polling import Run
from penstock.console.settings import ConsoleSettings
from penstock.console.watched_systems import WatchedSystems
from penstock.errors import PenstockError
from penstock.kafka.brokers import PLAINTEXT, Brokers
from penstock.kafka.security import MECHANISMS, PROTOCOLS
from penstock.serve.http_client import Address
from penstock.watch import run_files
from penstock.watch.run_files import RunFile

SECRET = "hush-hush"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS = f'sasl.jaas.config={MODULE} required username="ann" password="{SECRET}";'
LOGIN = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n{JAAS}\n"


def written(folder: Path, text: str) -> Path:
    file = folder / "client.properties"
    file.write_text(text, encoding="latin-1")
    return file


def read(folder: Path, text: str) -> Brokers:
    return Brokers("kafka:9093", command_config.read(written(folder, text)))


def test_a_file_of_kafkas_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cert, both = certificate(tmp_path)
    text = f"""\
# As in Kafka's documentation, with \\r\\n of another system.
security.protocol = SASL_SSL \r
sasl.mechanism: SCRAM-SHA-512\r
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
    username="ann" \\
    password="s=cr,\\u00e9t";
ssl.truststore.type=PEM
ssl.truststore.location={cert}
ssl.keystore.type=PEM
ssl.keystore.location={both}
ssl.endpoint.identification.algorithm=https
"""
    security = read(tmp_path, text).security
    assert (security.protocol, security.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (security.user, security.password) == ("ann", PASSWORD)
    assert (security.authorities, security.certificate) == (str(cert), str(both))
    assert capsys.readouterr().err == ""


def test_settings_without_effect_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, f"{LOGIN}request.timeout.ms=5\nretries=3\nclient.id={SECRET}\nsasl.login.class=x\n")
    command_config.read(file)
    said = capsys.readouterr().err
    assert said == f"penstock: without effect in {file}: client.id, request.timeout.ms, retries, sasl.login.class\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("secruity.protocol=SSL", r"no setting secruity.protocol .*did you mean security.protocol\?"),
        ("Security.Protocol=SSL", r"no setting Security.Protocol .*did you mean security.protocol\?"),
        ("sasl.mechanisms=PLAIN", r"no setting sasl.mechanisms .*did you mean sasl.mechanism\?"),
        ("ssl.trustore.location=ca.pem", r"no setting ssl.trustore.location .*did you mean ssl.truststore.location\?"),
        (f"ssl.x={SECRET}", "no setting ssl.x .*use one of security.protocol, "),
        (f"{LOGIN}sasl.password={SECRET}", "no user, or two"),
        ("security.protocol=TLS", "unsupported security.protocol 'TLS'"),
        (LOGIN.replace("=PLAIN\n", "=GSSAPI\n"), "unsupported sasl.mechanism 'GSSAPI'"),
        ("ssl.truststore.location=ca.pem", "no use for .*set security.protocol to SSL or SASL_SSL"),
        ("ssl.truststore.location=a\nssl.ca.location=b", "ssl.truststore.location and ssl.ca.location are the same"),
        ("ssl.truststore.type=JKS", "unsupported ssl.truststore.type 'JKS' .*keytool -list -rfc"),
        ("ssl.keystore.type=PKCS12", "unsupported ssl.keystore.type 'PKCS12' .*openssl pkcs12"),
        ("security.protocol=SSL\nssl.truststore.location=/no/ca.pem", "No such file .*ssl.truststore.location: /no/ca"),
        ("ssl.keystore.key=-----BEGIN", "the setting ssl.keystore.key is not supported .*into PEM files"),
        ("config.providers=env", "the setting config.providers is not supported"),
        # A value whose line has no backslash at its end goes on as a setting of its own.
        (LOGIN.replace(" password", "\n password"), "a line is not a setting .*backslash"),
        (f'{LOGIN}"{SECRET}";', "a line is not a setting .*backslash"),
        (f"{LOGIN}{SECRET.replace('-', '')}", "a line is not a setting"),
        (f"{LOGIN}sasl.password={SECRET}\\u12", "not in Java's properties format"),
        (f"{LOGIN}sasl.password={SECRET}\\ud800", "not in Java's properties format"),
        ("security.protocol=SSL\nssl.ca.location=\\u0000", "not in Java's properties format"),
    ],
)
def test_a_wrong_file_is_told_without_its_secrets(tmp_path: Path, text: str, said: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(PenstockError, match=said) as refused:
        command_config.read(file)
    assert str(file) in str(refused.value) and refused.value.next
    assert SECRET not in str(refused.value) and SECRET.replace("-", "") not in str(refused.value)


LINES = st.sampled_from([*command_config.KNOWN, *command_config.UNUSED, "", "a.b"])
VALUES = st.sampled_from([*PROTOCOLS, *MECHANISMS, f"{MODULE} required", 'x="', "\\", "\\u12", "\\u0000", "\\ud83d"])


@given(st.lists(st.tuples(LINES, st.sampled_from("=: \n"), VALUES | st.text(max_size=9))))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_gives_a_security_or_an_error(tmp_path: Path, lines: list[tuple[str, str, str]]) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes("\n".join(map("".join, lines)).encode())
    with suppress(PenstockError):
        assert command_config.read(file).protocol in PROTOCOLS


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (large := tmp_path / "large").write_bytes(b"#" * (1 << 20) + b"\n")
    # It has no end: the size is bounded before anything is parsed.
    for file, said in [(tmp_path / "none", "No such file"), (tmp_path, "Is a directory"), (large, "more than 1048576")]:
        with pytest.raises(PenstockError, match=said) as refused:
            command_config.read(file)
        assert str(file) in str(refused.value)
    with pytest.raises(PenstockError, match="more than 1048576 bytes"):
        command_config.read(Path("/dev/zero"))


def test_a_file_may_be_a_pipe(tmp_path: Path) -> None:
    """As the shell makes one for `--command-config <(vault read ...)`."""
    ends = os.pipe()
    os.write(ends[1], LOGIN.encode())
    os.close(ends[1])
    try:
        assert command_config.read(Path(f"/dev/fd/{ends[0]}")).password == SECRET
    finally:
        os.close(ends[0])


def test_no_client_setting_of_kafka_is_called_misspelt(tmp_path: Path) -> None:
    with jvm_of("kafka") as jvm:
        clients = jvm.org.apache.kafka.clients
        found = (clients.admin.AdminClientConfig, clients.consumer.ConsumerConfig, clients.producer.ProducerConfig)
        names = {str(name) for config in found for name in config.configNames()}
    assert len(names) > 100
    for name in sorted(names - {*command_config.KNOWN, *command_config.UNSUPPORTED}):
        assert read(tmp_path, f"{name}=x").security == PLAINTEXT


def test_a_login_needs_servers(tmp_path: Path, penstock: Callable[..., Any]) -> None:
    file = written(tmp_path, LOGIN)
    for command in (["topics", "list"], ["groups", "list"], ["console"], ["status", "--checkpoints", tmp_path]):
        done = penstock(*command, "--command-config", file)
        assert done.code == 1 and "--command-config needs --servers" in done.err
        assert "brokers that you name" in done.err


def test_the_addresses_of_runs_do_not_get_the_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    login = read(tmp_path, LOGIN)
    run = RunFile("run", "other", "http://127.0.0.1:1", "", None, "other:9092")
    other = Brokers("other:9092")
    for made, kafkas in [(ConsoleSettings(kafka=login), [login, other]), (ConsoleSettings(), [other])]:
        data = WatchedSystems(made)
        monkeypatch.setattr(data.runs, "all", lambda: [Run(Address("http://127.0.0.1:1", None), run)])
        assert [topics.brokers for topics in map(data.kafkas.topics, data.kafkas.names())] == kafkas
        assert SECRET not in repr(made) + repr(data.kafkas.topics().brokers)


@dataclass(frozen=True)
class Secured:
    """A Kafka with a topic of one record and a dead letter for `late`; files with a right and a wrong password."""

    broker: KafkaCluster
    topic: str
    dead: str
    late: str
    good: Path
    wrong: Path

    @property
    def servers(self) -> str:
        return self.broker.address(1, "BOTH")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    cert, both = certificate(folder)
    text = f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={cert}\n"
    escaped = PASSWORD.replace("é", "\\u00e9")
    text += f'sasl.mechanism=PLAIN\nsasl.jaas.config={MODULE} required username="ann" password="{escaped}";\n'
    (good := folder / "good.properties").write_text(text)
    (wrong := folder / "wrong.properties").write_text(text.replace(escaped, SECRET))
    with ExitStack() as stack:
        broker = stack.enter_context(secure_kafka(folder / "broker", both))
        topic, dead, late = (
            stack.enter_context(new_topic(broker.servers, name, 1)) for name in ("orders", "dead", "late")
        )
        producer = Producer({"bootstrap.servers": broker.servers})
        producer.produce(topic, b'{"id": 7}', key="k7")
        headers = {f"__connect.errors.{name}": text for name, text in [("topic", late), ("exception.message", "late")]}
        producer.produce(dead, b"{}", key="again", headers=headers)
        assert producer.flush(60) == 0
        yield Secured(broker, topic, dead, late, good, wrong)


def test_commands_at_a_kafka_with_tls_and_sasl(secured: Secured, penstock: Callable[..., Any]) -> None:
    def run(*words: object) -> list[Any]:
        done = penstock(*words, "--servers", secured.servers, "--command-config", secured.good, "--json")
        assert (done.code, done.err) == (0, ""), done.err
        return [json.loads(line) for line in done.out.splitlines()]

    assert {"topic": secured.topic, "partitions": 1} in run("topics", "list")
    assert run("topics", "describe", secured.topic)[0]["partitions"][0]["end"] == 1
    assert run("topics", "count", secured.topic)[-1]["records"] == 1
    (record,) = run("topics", "tail", secured.topic, "--limit", 1)
    assert (record["key"], record["value"]) == ("k7", '{"id": 7}')
    assert run("groups", "list") == []


@pytest.mark.slow
def test_commands_that_are_refused(secured: Secured, tmp_path: Path, penstock: Callable[..., Any]) -> None:
    other, _ = certificate(tmp_path)
    untrusted = written(tmp_path, re.sub(r"(?m)(?<=location=).*$", str(other), secured.good.read_text()))
    for command in (["topics", "list"], ["groups", "list"]):
        words = [*command, "--servers", secured.servers]
        done = penstock(*words, "--command-config", secured.wrong)
        assert done.code == 1 and "AUTHENTICATION_FAILED" in done.err
        assert f"Next: correct security.protocol and sasl.* in {secured.wrong}" in done.err
        assert SECRET not in done.err
        done = penstock(*words, "--command-config", untrusted)
        assert done.code == 1 and "certificate" in done.err
        done = penstock(*words)
        assert done.code == 1 and "--command-config FILE" in done.err


@pytest.mark.slow
def test_the_console_at_a_kafka_with_tls_and_sasl(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists topics, shows records and sends a dead letter; nobody sees the password, and no run's Kafka is asked."""
    with socket.create_server(("127.0.0.1", 0)) as other, ExitStack() as stack:
        other.setblocking(False)
        monkeypatch.setenv("PENSTOCK_RUNS", str(tmp_path / "runs"))
        address = f"127.0.0.1:{other.getsockname()[1]}"
        run = RunFile("run", "other", "http://127.0.0.1:1", "penstock run", None, address)
        stack.enter_context(run_files.written(run))
        options = ["--servers", secured.servers, "--command-config", str(secured.good), "--allow-actions"]
        made = stack.enter_context(console(tmp_path, *options))
        assert [run["name"] for run in made.get("/api/overview")["runs"]] == ["other"]
        assert secured.topic in [one["name"] for one in made.get("/api/topics")]
        (record,) = made.get(f"/api/topics/{secured.topic}/records")["records"]
        assert (record["key"], record["value"]) == ("k7", '{"id": 7}')
        assert [one["topic"] for one in made.get("/api/dead-letters")] == [secured.dead]
        assert made.post(f"/api/dead-letters/{secured.dead}/send", {"all": True})["topics"] == {secured.late: 1}
        assert [one["key"] for one in made.get(f"/api/topics/{secured.late}/records")["records"]] == ["again"]
        _require_hidden(made, [secured.topic, secured.dead])
        with pytest.raises(BlockingIOError):
            other.accept()


def _require_hidden(made: ConsoleProcess, topics: list[str]) -> None:
    """The password is in no command line, environment, log or answer; what is looked for is its part in ASCII."""
    process = psutil.Process(made.process.pid)
    processes = [process, *process.children(recursive=True)]
    assert len(processes) == 2, "the process that reads records has to run"
    told = [text for one in processes for text in (*one.cmdline(), *one.environ().values())]
    paths = ("/api/overview", "/api/topics", "/openapi.json", *(f"/api/topics/{one}/records" for one in topics))
    told += [json.dumps(made.get(path)) for path in paths]
    told.append(made.errors.read_text())
    assert not [text for text in told if PASSWORD[:5] in text]


@pytest.mark.slow
def test_the_console_with_a_wrong_password(secured: Secured, tmp_path: Path) -> None:
    with console(tmp_path, "--servers", secured.servers, "--command-config", str(secured.wrong)) as made:
        # The process that reads records tells only errors that may pass as 503.
        for path, status in (("/api/topics", 503), (f"/api/topics/{secured.topic}/records", 400)):
            said = made.get(path, status)
            assert "AUTHENTICATION_FAILED" in said["error"] and "--command-config" in said["next"]
            assert SECRET not in json.dumps(said) + made.errors.read_text()
