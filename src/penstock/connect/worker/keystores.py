"""Converts Java keystores (JKS, PKCS 12) to PEM files, with Spark's Java."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from penstock.database.access import NoTls
from penstock.spark_runtime.jvm import gateway_of
from penstock.spark_runtime.session import spark

CERTIFICATE, KEY = "java.security.cert.Certificate", "java.security.Key"


def pem_files(values: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """The arguments `ca` and `certificate` of `Access`, from the properties of a truststore and a keystore."""
    files = {}
    for name, kind in (("truststore", "ca"), ("keystore", "certificate")):
        if path := values[f"{prefix}{name}.path"]:
            files[kind] = as_pem(path, values[f"{prefix}{name}.password"])
    return files


def as_pem(store: str, password: str | None) -> str:
    """Write the keystore's keys with their chains, and its certificates, to a PEM file; returns its path.

    Only this user can read the file. The same store gives the same file. Raises NoTls if it cannot be opened.
    """
    path = Path(store)
    state = path.stat()
    named = f"{path.resolve()}\0{state.st_mtime_ns}\0{state.st_size}\0{password}"
    folder = Path(tempfile.gettempdir()) / f"penstock-keystores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise NoTls(f"{folder} belongs to another user", next="remove it, or set TMPDIR to a folder of your own")
    file = folder / f"{hashlib.sha256(named.encode()).hexdigest()[:32]}.pem"
    if not file.exists():
        _write(file, _contents(path, password or ""))
    return str(file)


def _write(file: Path, text: str) -> None:
    # Several connectors may write the same file at once: each writes a file of its own, which only this user can read.
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as fresh:
        fresh.write(text)
    Path(fresh.name).replace(file)


def _contents(path: Path, password: str) -> str:
    gateway = gateway_of(spark())
    letters = gateway.new_array(gateway.jvm.char, len(password))
    for i, letter in enumerate(password):
        letters[i] = letter
    try:
        store = gateway.jvm.java.security.KeyStore.getInstance(gateway.jvm.java.io.File(str(path)), letters)
        return "".join(_entry(gateway, store, str(alias), letters) for alias in _each(store.aliases()))
    except Py4JJavaError as error:
        raise NoTls(
            f"the keystore cannot be opened: {error.java_exception.getMessage()}",
            where=str(path),
            next="check its password, and that the file is a JKS or PKCS 12 keystore",
        ) from None


def _each(elements: Any) -> list[Any]:
    items = []
    while elements.hasMoreElements():
        items.append(elements.nextElement())
    return items


def _entry(gateway: Any, store: Any, alias: str, letters: Any) -> str:
    if not store.isKeyEntry(alias):
        return _pem("CERTIFICATE", _encoded(gateway, CERTIFICATE, store.getCertificate(alias)))
    key = _pem("PRIVATE KEY", _encoded(gateway, KEY, store.getKey(alias, letters)))
    chain = (_encoded(gateway, CERTIFICATE, certificate) for certificate in store.getCertificateChain(alias))
    return key + "".join(_pem("CERTIFICATE", certificate) for certificate in chain)


def _encoded(gateway: Any, kind: str, entry: Any) -> bytes:
    """The DER of a key or certificate, by its public class: the object's own class is hidden in a Java module."""
    lang = gateway.jvm.java.lang
    method = lang.Class.forName(kind).getMethod("getEncoded", gateway.new_array(lang.Class, 0))
    return bytes(method.invoke(entry, gateway.new_array(lang.Object, 0)))


def _pem(kind: str, der: bytes) -> str:
    return f"-----BEGIN {kind}-----\n{base64.encodebytes(der).decode()}-----END {kind}-----\n"
