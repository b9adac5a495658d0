"""Addresses of a cluster as users write them, and the TLS settings for it."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_args

import pytest
from cassandra import ConsistencyLevel
from hypothesis import given, strategies as st
from pyspark.sql import DataFrame
from secure_kafka import certificate
from waiting import PATIENCE

from penstock import cql, segment
from penstock.database.access import Access, AccessOptions, Consistency, NoTls
from penstock.errors import PenstockError

PORTS = st.integers(1, 65_535)


def test_addresses_have_a_port_or_the_usual_one() -> None:
    found = Access.of("10.0.0.1:1, db, [::1]:65535,[fe80::2]", {}, where="here").endpoints()
    assert found == [("10.0.0.1", 1), ("db", 9042), ("::1", 65535), ("fe80::2", 9042)]


@pytest.mark.parametrize(
    "hosts",
    ["h:0", "h:65536", "h:74578", "h:99999", "h:100000", "h:", "a:b:c", "h:1,h:x", "::1", "[::1", "::1]:9042", "[h]:1"],
)
def test_what_is_no_address_is_refused(hosts: str) -> None:
    with pytest.raises(PenstockError, match=r"is not a valid address.*give hosts as"):
        Access.of(hosts, {}, where="here")


@given(st.lists(st.tuples(st.ip_addresses(), st.none() | PORTS), min_size=1, max_size=5), st.sampled_from([",", " , "]))
def test_any_list_of_addresses_is_read_back(hosts: list[Any], between: str) -> None:
    names = [f"[{host}]" if host.version == 6 else str(host) for host, _ in hosts]
    ports = ["" if port is None else f":{port}" for _, port in hosts]
    text = between.join(name + port for name, port in zip(names, ports, strict=True))
    assert Access(text).endpoints() == [(str(host), port or 9042) for host, port in hosts]


@pytest.mark.parametrize("hosts", ["", " ", ",", " , ,"])
def test_a_cluster_without_an_address_is_refused(hosts: str) -> None:
    with pytest.raises(PenstockError, match=r"hosts has no address \(cql.sink\).*10.0.0.1:9042,10.0.0.2:9042"):
        Access.of(hosts, {}, where="cql.sink")


def test_an_unknown_argument_is_named_with_those_that_exist() -> None:
    with pytest.raises(
        PenstockError,
        match=r"unknown argument 'pasword' \(here\).*mean 'password'\? use one of hosts, user, password",
    ):
        Access.of("db", {"user": "ann", "pasword": "x"}, where="here")


FRAME = object.__new__(DataFrame)


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (cql.sink, "cql.sink"),
        (cql.lookup, "cql.lookup"),
        (cql.global_table, "cql.global_table"),
        (cql.ids, "cql.ids"),
        (segment.sink, "segment.sink"),
        (segment.counts, "segment.counts"),
        (segment.erase, "segment.erase"),
        (segment.sync, "segment.sync"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_function_of_a_cluster_suggests_the_argument_that_was_meant(call: Callable[..., Any], where: str) -> None:
    required = {
        name: {"mode": "full", "persons": ["ann"], "columns": ["a"], "frame": FRAME}.get(name, "h:1")
        for name, one in signature(call).parameters.items()
        if one.default is Parameter.empty and one.kind is not Parameter.VAR_KEYWORD
    }
    with pytest.raises(PenstockError, match=rf"unknown argument 'usr' \({where}.*did you mean 'user'\? use one of"):
        call(**required, usr="ann")
    if "timeout" in signature(call).parameters:
        with pytest.raises(PenstockError, match=r"unknown argument 'timout'.*did you mean 'timeout'\?"):
            call(**required, timout=5)


def test_the_arguments_of_a_function_are_those_of_an_access() -> None:
    # Translated addresses are of connectors only.
    names = [field.name for field in fields(Access) if field.name not in ("hosts", "translated")]
    assert names == list(AccessOptions.__annotations__)
    assert set(get_args(Consistency)) == set(ConsistencyLevel.name_to_value)


def test_arguments_become_fields_and_the_password_is_not_shown() -> None:
    made = Access.of(
        "db", {"user": "ann", "password": "s3cret", "local_dc": "near", "consistency": "ONE"}, where="here"
    )
    assert (made.user, made.password, made.local_dc, made.consistency) == ("ann", "s3cret", "near", "ONE")
    assert "ann" in repr(made) and "s3cret" not in repr(made)


def test_connections_are_shared_by_equal_settings_only() -> None:
    """A process keeps one connection for each `Access`: every setting must tell them apart."""
    plain = Access("db")
    others: list[dict[str, Any]] = [
        {"user": "ann"},
        {"password": "x"},
        {"local_dc": "near"},
        {"consistency": "ONE"},
        {"tls": True},
        {"ca": "ca.pem"},
        {"certificate": "own.pem"},
        {"key": "own.pem"},
        {"verify_hostname": False},
    ]
    assert plain == Access("db") and hash(plain) == hash(Access("db"))
    assert len({plain, Access("db:9042"), *(Access("db", **other) for other in others)}) == len(others) + 2


def test_without_tls_settings_there_is_no_tls() -> None:
    assert Access("db").tls_context() is None


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate, and a file with the certificate and its key."""
    return certificate(tmp_path_factory.mktemp("certificates"))


def test_a_context_trusts_the_given_authority_only(files: tuple[Path, Path]) -> None:
    context = Access("db", ca=str(files[0])).tls_context()
    assert context and len(context.get_ca_certs()) == 1
    assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname


def test_the_name_of_a_node_is_checked_unless_that_is_turned_off(files: tuple[Path, Path]) -> None:
    context = Access("db", ca=str(files[0]), verify_hostname=False).tls_context()
    assert context and not context.check_hostname
    # The certificate itself is always checked.
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert (usual := Access("db", tls=True).tls_context()) and usual.check_hostname


def test_a_client_s_certificate_may_have_its_key_beside_it_or_inside(files: tuple[Path, Path]) -> None:
    cert, both = files
    assert Access("db", certificate=str(both)).tls_context()
    assert Access("db", certificate=str(cert), key=str(both)).tls_context()


def test_files_that_cannot_be_read_are_named(files: tuple[Path, Path], tmp_path: Path) -> None:
    missing, empty = tmp_path / "none.pem", tmp_path / "empty.pem"
    empty.touch()
    for settings in ({"ca": missing}, {"ca": empty}, {"certificate": missing}, {"certificate": files[0]}):
        (path,) = settings.values()
        with pytest.raises(
            NoTls, match=r"the files for TLS cannot be read: .*with a key that has no password"
        ) as raised:
            Access.of("db", {name: str(path) for name, path in settings.items()}, where="here").tls_context()
        assert raised.value.where == str(path) and not raised.value.retriable


def test_a_key_without_its_certificate_is_refused_instead_of_a_plain_connection(files: tuple[Path, Path]) -> None:
    with pytest.raises(NoTls, match=r"key is given without certificate.*give the certificate's file too"):
        Access("db", key=str(files[1])).tls_context()


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(files: tuple[Path, Path], tmp_path: Path) -> None:
    if not shutil.which("openssl"):
        pytest.skip("openssl encrypts the key, and is not installed")
    locked = tmp_path / "locked.pem"
    command = ["openssl", "rsa", "-aes128", "-passout", "pass:word", "-in", str(files[1]), "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    with pytest.raises(NoTls, match="the files for TLS cannot be read"):
        Access("db", certificate=str(files[0]), key=str(locked)).tls_context()
