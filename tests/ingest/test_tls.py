"""A server behind TLS, with a spool."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests
from ingest_server import PARTITIONS, ingest
from kafka_topics import new_topic, stored
from secure_kafka import certificate
from waiting import until

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
            answer = requests.post(url, json={"a": 1}, verify=str(cert), cert=str(keystore), timeout=30)
            assert (answer.status_code, answer.json()) == (202, {"accepted": 1})
            with pytest.raises(requests.exceptions.ConnectionError):
                requests.post(url, json={"a": 2}, verify=str(cert), timeout=30)
            described = requests.get(f"{server.url}/openapi.json", verify=str(cert), cert=str(keystore), timeout=30)
            assert "202" in described.json()["paths"][f"/events/{topic}"]["post"]["responses"]
            until(lambda: [b'{"a": 1}'] in stored(services.kafka, topic, PARTITIONS), "the event")
            assert server.stop() == 0
