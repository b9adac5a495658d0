"""Reading through TLS: trusted nodes, client certificates, and the errors when TLS fails."""

from __future__ import annotations

import gc
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cdc_queries import Sink, run
from secure_kafka import certificate
from tls_proxy import tls_proxy
from waiting import PATIENCE

from penstock.connect.worker.keystores import as_pem
from penstock.database.access import NoTls
from penstock.errors import PenstockError


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, and a file with the certificate and its key."""
    return certificate(tmp_path_factory.mktemp("certificates"))


def test_rows_come_through_tls_with_a_client_s_certificate(
    cql: Any, table: Any, read: Any, services: Any, files: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, both = files
    name = table("id int PRIMARY KEY, v int")
    cql.execute(f"INSERT INTO {name} (id, v) VALUES (1, 2)")
    sink = Sink()
    with tls_proxy(services.cql, both, clients=cert) as hosts:
        run(read(name, hosts=hosts, ca=str(cert), certificate=str(both)), sink, tmp_path)
    assert [row.key.id for row in sink.rows] == [1]


@pytest.fixture
def driver_leaks() -> Iterator[None]:
    """The driver leaves the sockets of failed handshakes open: collect them here, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@pytest.mark.usefixtures("driver_leaks")
def test_what_is_wrong_with_tls_is_said_at_once(
    table: Any, read: Any, services: Any, files: tuple[Path, Path], tmp_path: Path
) -> None:
    name = table("id int PRIMARY KEY, v int")
    with pytest.raises(
        PenstockError, match=r"TLS with the database failed: wrong version number.*this port speaks TLS"
    ):
        read(name, hosts=services.cql, tls=True)
    with tls_proxy(services.cql, files[1]) as hosts:
        with pytest.raises(PenstockError, match=r"TLS with the database failed: certificate verify failed.*check ca"):
            read(name, hosts=hosts, tls=True)
        with pytest.raises(PenstockError, match=r"the files for TLS cannot be read.*PEM files"):
            read(name, hosts=hosts, ca=str(tmp_path / "none.pem"))
        with pytest.raises(PenstockError, match="the files for TLS cannot be read"):
            read(name, hosts=hosts, ca=str(files[0]), certificate=str(files[0]))
        with pytest.raises(PenstockError, match=r"the argument tls is a str .*give True or False"):
            read(name, hosts=hosts, tls="maybe")


def test_java_keystores_become_pem_files(spark: Any, files: tuple[Path, Path], tmp_path: Path) -> None:
    if not shutil.which("keytool"):
        pytest.skip("keytool makes the keystores, and is not installed")
    cert, both = files
    trusted, own = tmp_path / "trusted.jks", tmp_path / "own.p12"
    words = ["-storepass", "secret", "-noprompt"]
    imported = ["keytool", "-importcert", "-alias", "node", "-file", str(cert), "-keystore", str(trusted), *words]
    subprocess.run([*imported, "-storetype", "JKS"], check=True, capture_output=True, timeout=PATIENCE)
    exported = ["openssl", "pkcs12", "-export", "-in", str(both), "-out", str(own), "-passout", "pass:secret"]
    subprocess.run(exported, check=True, capture_output=True, timeout=PATIENCE)
    assert "".join(Path(as_pem(str(trusted), "secret")).read_text().split()) == "".join(cert.read_text().split())
    made = Path(as_pem(str(own), "secret"))
    assert "".join(made.read_text().split()) == "".join(both.read_text().split())
    assert made.stat().st_mode & 0o777 == 0o600
    with pytest.raises(NoTls, match=r"the keystore cannot be opened: .*password"):
        as_pem(str(own), "wrong")
