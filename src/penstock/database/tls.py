"""TLS with a database: the context of a connection, and what is said when there is none."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable

from penstock.errors import PenstockError


class NoTls(PenstockError):
    """TLS cannot be set up; waiting will not help."""


def context(ca: str, certificate: str, key: str, verify_hostname: bool) -> ssl.SSLContext:
    """Made of PEM files, each left out if empty; without `ca` the system's authorities are trusted."""
    try:
        made = ssl.create_default_context(cafile=ca or None)
        made.check_hostname = verify_hostname
        if certificate:
            # A function even without a password: otherwise OpenSSL would ask for it at the terminal.
            made.load_cert_chain(certificate, key or None, lambda: "")
    except OSError as error:
        raise NoTls(
            f"the files for TLS cannot be read: {error}",
            where=", ".join(filter(None, (ca, certificate, key))),
            next="give PEM files that are there on every machine that reads, the key without a password",
        ) from error
    return made


def refused(errors: Iterable[Exception], hosts: str) -> NoTls | None:
    """What a handshake failed of, if one did; the driver tells OpenSSL's error in the text of its own."""
    for error in errors:
        if found := re.search(r"\[SSL: \w+\] ([^(]+)", str(error)):
            return NoTls(
                f"no TLS with the database: {found[1].strip()}",
                where=hosts,
                next="check ca, the certificate's names (verify_hostname), and that this port speaks TLS",
            )
    return None
