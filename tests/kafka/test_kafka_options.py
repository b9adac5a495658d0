"""The options of `format("penstock-kafka")`: their meaning, their errors, and TLS and SASL through Spark."""

from __future__ import annotations

import inspect
import pickle
import ssl
import subprocess
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from kafka_topics import new_topic, stored
from pyspark.sql import SparkSession
from secure_kafka import PASSWORD, certificate, secure_kafka
from waiting import PATIENCE

from penstock import kafka, write
from penstock.errors import PenstockError
from penstock.kafka.client_options import CREATE, LEAST, Options
from penstock.kafka.security import Security
from penstock.wire import Producer

SECRET = "hush hush"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def sasl(**settings: str) -> dict[str, str]:
    """Settings for SASL without TLS, with dots for underscores."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"} | named


def test_settings_of_kafka_become_arguments_of_the_producer() -> None:
    given = {"servers": "x:1", "kafka.linger.ms": "0", "batch.size": "5000", "compression.type": "zstd"}
    given |= {"delivery.timeout.ms": "90000", "request.timeout.ms": "1500", "kafka.transaction.timeout.ms": "600000"}
    assert Options.of(given).tuning == {
        "linger": timedelta(0),
        "batch_size": 5000,
        "compression": "zstd",
        "delivery_timeout": timedelta(seconds=90),
        "request_timeout": timedelta(seconds=1.5),
        "transaction_timeout": timedelta(minutes=10),
    }
    assert Options.of({"servers": "x:1"}).tuning == {"compression": "none"}
    may_create = {
        text: Options.of({"servers": "x:1", CREATE: text}).tuning["create_topics"] for text in ("true", "False")
    }
    assert may_create == {"true": True, "False": False}


def test_each_number_has_an_argument_and_is_taken_at_its_least() -> None:
    least = Options.of({"servers": "x:1"} | {name: str(number) for name, number in LEAST.items()})
    assert len(least.tuning.keys() & inspect.signature(Producer).parameters.keys()) == len(LEAST) + 1
    assert isinstance(least.producer(Producer), Producer)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max.block.ms": "1"}, "no option 'max.block.ms'.*linger.ms.*batch.size.*sasl.password"),
        ({"kafka.sasl.mechanisms": "PLAIN"}, "no option 'sasl.mechanisms'.*did you mean 'sasl.mechanism'"),
        ({"kafka.linger.ms": "1", "linger.ms": "2"}, "linger.ms twice"),
        ({"compression": "lz4", "compression.type": "lz4"}, "compression.type twice"),
        ({"linger.ms": "5 seconds"}, "the invalid linger.ms '5 seconds'.*milliseconds, 0 to"),
        ({CREATE: "no"}, "the invalid allow.auto.create.topics 'no'.*give true or false"),
        ({"delivery.timeout.ms": "0"}, "the invalid delivery.timeout.ms '0'.*1 to"),
        ({"batch.size": str(2**31)}, "the invalid batch.size '2147483648'.*bytes"),
        ({"security.protocol": "TLS"}, "unsupported security.protocol 'TLS'.*PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"ssl.ca.location": "ca.pem"}, "no use for ssl.ca.location.*to SSL or SASL_SSL; it is PLAINTEXT"),
        (
            {"security.protocol": "SSL", "sasl.username": "ann"},
            "no use for sasl.username.*to SASL_PLAINTEXT or SASL_SSL; it is SSL",
        ),
        ({"security.protocol": "SSL", "ssl.truststore.type": "JKS"}, "an unsupported ssl.truststore.type 'JKS'.*PEM"),
        ({"security.protocol": "SSL", "ssl.key.location": "k"}, "ssl.key.location without ssl.certificate.location"),
        (sasl(sasl_mechanism="GSSAPI"), "an unsupported sasl.mechanism 'GSSAPI'.*PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (sasl(), "no user, or two.*sasl.jaas.config"),
        (sasl(sasl_username="ann"), "no user name or no password"),
        (sasl(sasl_username="ann", sasl_password=SECRET, sasl_jaas_config=f"{PLAIN};"), "no user, or two"),
        (sasl(sasl_jaas_config=f'username="ann" password="{SECRET}"'), "sasl.jaas.config that cannot be read"),
        (sasl(sasl_jaas_config=f'{PLAIN} password="{SECRET}";'), "no user name or no password"),
    ],
)
def test_a_wrong_setting_is_told_and_no_password(given: Mapping[str, str], said: str) -> None:
    with pytest.raises(PenstockError, match=said) as refused:
        Options.of({"servers": "x:1", **given})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('username="ann" password="s=cr,ét"', "s=cr,ét"),
        (r'''username='ann' password="a \"b\\ c;"''', r'a "b\ c;'),
        ("serviceName=\"a username='eve'\" username = ann password=p", "p"),
        ('username="ann"\n  password="it\'s"', "it's"),
    ],
)
def test_the_user_of_a_jaas_text(written: str, meant: str) -> None:
    found = Security.of(sasl(sasl_jaas_config=f"{PLAIN} {written};"))
    assert (found.user, found.password) == ("ann", meant)


def test_no_password_is_shown() -> None:
    secrets = {"sasl.username": "ann", "sasl.password": SECRET, "ssl.key.password": SECRET}
    given = sasl() | secrets | {"security.protocol": "SASL_SSL"}
    sink = kafka.sink("t", servers="x:1", delivery="exactly-once", options=given)
    made = Options.of(sink.own_options)
    assert SECRET not in repr(sink) + repr(made) + repr(made.security.authenticate())
    assert pickle.loads(pickle.dumps(made)).security.password == SECRET


def test_files_of_tls_that_cannot_be_read(tmp_path: Path) -> None:
    (empty := tmp_path / "empty.pem").touch()
    cert, _ = certificate(tmp_path)
    for given, said in [
        ({"ssl.truststore.location": "/nowhere.pem"}, r"No such file.*ssl.ca.location: /nowhere.pem"),
        ({"ssl.ca.location": str(empty)}, r"cannot be read.*empty.pem"),
        ({"ssl.certificate.location": str(cert)}, r"cannot be read.*ssl.certificate.location.*cert.pem"),
    ]:
        options = Options.of({"servers": "x:1", "security.protocol": "SSL", **given})
        with pytest.raises(PenstockError, match=said):
            options.security.tls()


def test_a_key_with_a_password(tmp_path: Path) -> None:
    cert, both = certificate(tmp_path)
    key = encrypted(both, tmp_path / "locked.pem")
    files = {"ssl.certificate.location": str(cert), "ssl.key.location": str(key), "security.protocol": "SSL"}
    assert isinstance(Security.of(files | {"ssl.key.password": SECRET}).tls(), ssl.SSLContext)
    # Without one, or with a wrong one, it fails instead of asking at the terminal.
    for wrong in {}, {"ssl.key.password": "open sesame"}:
        with pytest.raises(PenstockError, match=r"locked.pem.*ssl.key.password if the key has one") as refused:
            Security.of(files | wrong).tls()
        assert "open sesame" not in str(refused.value)


def encrypted(key: Path, target: Path) -> Path:
    """The key in a file that asks for `SECRET`."""
    command = ["openssl", "pkey", "-in", str(key), "-aes128", "-passout", "stdin", "-out", str(target)]
    subprocess.run(command, input=SECRET.encode(), check=True, capture_output=True, timeout=PATIENCE)
    return target


@pytest.mark.slow
def test_a_stream_through_tls_with_a_password(
    spark: SparkSession, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cert, keystore = certificate(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rows.txt").write_text("one\ntwo\n")
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.truststore.location": str(cert),
    }
    settings |= {"sasl.jaas.config": f'ScramLoginModule required username="bob" password="{PASSWORD}";'}
    with (
        secure_kafka(tmp_path_factory.mktemp("broker"), keystore) as broker,
        new_topic(broker.servers, "secure", 1) as topic,
    ):
        options = {f"kafka.{name}": value for name, value in settings.items()}
        sink = kafka.sink(topic, servers=broker.address(1, "BOTH"), delivery="exactly-once", options=options)
        query = write(spark.readStream.text(str(tmp_path / "in")), sink).start(
            checkpoint=tmp_path / "checkpoint", trigger="once"
        )
        query.awaitTermination()
        assert stored(broker.servers, topic, 1) == [[b"one", b"two"]]
        assert PASSWORD not in query._jsq.explainInternal(True)
        back = kafka.read(
            spark, topic, servers=broker.address(1, "BOTH"), name="back", schema="v int", format="csv", options=options
        )
        # The written values are not numbers, so the reasons quote them.
        found = back.select("problem.reason").writeStream.format("memory").queryName("secure_back")
        query = found.trigger(availableNow=True).start()
        query.awaitTermination()
        assert [row.reason for row in spark.table("secure_back").collect()] == [
            "v is not a valid int: 'one'",
            "v is not a valid int: 'two'",
        ]
        assert PASSWORD not in query._jsq.explainInternal(True)
