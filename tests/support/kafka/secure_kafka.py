"""A real broker that requires TLS and SASL, and its certificates."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from kafka_cluster import KafkaCluster, kafka_cluster
from waiting import PATIENCE

LISTENERS = {"SASL": "SASL_PLAINTEXT", "TLS": "SSL", "BOTH": "SASL_SSL"}
PASSWORD = "s=cr,ét"

# Kafka has no switch for all listeners at once, and its files are read as Latin-1 unless escaped.
SASL = """\
listener.name.{listener}.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.{listener}.plain.sasl.jaas.config={module}.plain.PlainLoginModule required user_ann="{password}";
listener.name.{listener}.scram-sha-256.sasl.jaas.config={module}.scram.ScramLoginModule required;
listener.name.{listener}.scram-sha-512.sasl.jaas.config={module}.scram.ScramLoginModule required;
listener.name.{listener}.oauthbearer.sasl.jaas.config={module}.oauthbearer.OAuthBearerLoginModule required;
"""
MODULE = "org.apache.kafka.common.security"
TLS = "ssl.keystore.type=PEM\nssl.keystore.location={keystore}\n"


def certificate(folder: Path) -> tuple[Path, Path]:
    """A new certificate only for 127.0.0.1, and a file with it and its key."""
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificates, and is not installed")
    key, cert, both = folder / "key.pem", folder / "cert.pem", folder / "keystore.pem"
    options = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=broker -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", *options.split(), "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    both.write_text(key.read_text() + cert.read_text())
    return cert, both


@contextmanager
def secure_kafka(folder: Path, keystore: Path) -> Iterator[KafkaCluster]:
    """A broker with `LISTENERS` and its plain listener; ann logs in with PLAIN, bob with SCRAM, with `PASSWORD`."""
    escaped = PASSWORD.encode("ascii", "backslashreplace").decode().replace("\\xe9", "\\u00e9")
    text = TLS.format(keystore=keystore)
    for listener in "sasl", "both":
        text += SASL.format(listener=listener, module=MODULE, password=escaped)
    with kafka_cluster(folder, brokers=1, listeners=LISTENERS, properties=text) as made:
        admin = AdminClient({"bootstrap.servers": made.servers, "log_level": 0})
        for mechanism in ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512:
            secret = ScramCredentialInfo(mechanism, 4096)
            known = UserScramCredentialUpsertion("bob", secret, PASSWORD.encode())
            admin.alter_user_scram_credentials([known])["bob"].result()
        yield made
