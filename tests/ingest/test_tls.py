"""A server behind TLS, with a spool."""

from __future__ import annotations

import signal
import ssl
from pathlib import Path

import pytest
import requests
from http_attacks import answer, connected, head
from ingest_server import PARTITIONS, ingest
from kafka_topics import new_topic, stored
from secure_kafka import certificate
from waiting import PATIENCE, until

from penstock.local.services import Services


def test_callers_need_the_certificate_that_the_file_names(services: Services, tmp_path: Path) -> None:
    cert, keystore = certificate(tmp_path)
    with new_topic(services.kafka, "tls", PARTITIONS) as topic:
        (tmp_path / "ingest.toml").write_text(
            f'servers = "{services.kafka}"\nspool = "spool"\n[topics.{topic}]\n'
            f'[tls]\ncertificate = "keystore.pem"\nkey = "keystore.pem"\nclients = "{cert.name}"\n'
        )
        with ingest(tmp_path, tmp_path / "ingest.toml") as server:
            url = f"{server.url}/events/{topic}"
            assert url.startswith("https://")
            answer = requests.post(url, json={"a": 1}, verify=str(cert), cert=str(keystore), timeout=PATIENCE)
            assert (answer.status_code, answer.json()) == (202, {"accepted": 1})
            with pytest.raises(requests.exceptions.ConnectionError):
                requests.post(url, json={"a": 2}, verify=str(cert), timeout=PATIENCE)
            described = requests.get(
                f"{server.url}/openapi.json", verify=str(cert), cert=str(keystore), timeout=PATIENCE
            )
            assert "202" in described.json()["paths"][f"/events/{topic}"]["post"]["responses"]
            until(lambda: [b'{"a": 1}'] in stored(services.kafka, topic, PARTITIONS), "the event")
            assert server.stop() == 0


@pytest.mark.slow
def test_a_caller_whose_handshake_ends_while_the_server_stops_does_not_keep_it(
    services: Services, tmp_path: Path
) -> None:
    """Without TLS the window is short: under load some servers did not end while their callers had more to send."""
    certificate(tmp_path)
    context = ssl.create_default_context(cafile=tmp_path / "keystore.pem")
    context.check_hostname = False
    with new_topic(services.kafka, "tls", PARTITIONS) as topic:
        (tmp_path / "ingest.toml").write_text(
            f'servers = "{services.kafka}"\n[topics.{topic}]\n'
            '[tls]\ncertificate = "keystore.pem"\nkey = "keystore.pem"\n'
        )
        with ingest(tmp_path, tmp_path / "ingest.toml") as server, connected(server.url) as late:
            with connected(server.url) as plain, context.wrap_socket(plain) as under_way:
                under_way.sendall(head(topic, 8))
                server.process.send_signal(signal.SIGTERM)
                until(lambda: is_refused(server.url), "an end of listening")
                with context.wrap_socket(late) as made:
                    made.settimeout(10)
                    assert made.recv(1) == b""
                under_way.sendall(b'{"a": 1}')
                assert answer(under_way) == (200, b'{"accepted":1}')
            assert server.process.wait(PATIENCE) == 0
        assert [b'{"a": 1}'] in stored(services.kafka, topic, PARTITIONS)


def is_refused(url: str) -> bool:
    try:
        with connected(url):
            return False
    except ConnectionError:
        return True
