"""TLS with a database: the context of a connection, and the errors of a failed handshake."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable

from penstock.errors import PenstockError


class NoTls(PenstockError):
    """TLS cannot be set up; waiting will not help."""


def context(ca: str, certificate: str, key: str, verify_hostname: bool) -> ssl.SSLContext:
    """Build a context from PEM files; an empty path means no file. Without `ca` the system's authorities are trusted.

    Raises NoTls if a file cannot be read.
    """
    try:
        made = ssl.create_default_context(cafile=ca or None)
        made.check_hostname = verify_hostname
        if certificate:
            # A function even without a password: otherwise OpenSSL asks for the password at the terminal.
            made.load_cert_chain(certificate, key or None, lambda: "")
    except OSError as error:
        raise NoTls(
            f"the files for TLS cannot be read: {error}",
            where=", ".join(filter(None, (ca, certificate, key))),
            next="give PEM files that exist on every machine that reads, with a key that has no password",
        ) from error
    return made


def refused(errors: Iterable[Exception], hosts: str) -> NoTls | None:
    """Why a TLS handshake failed; None if none did. The driver's error message contains OpenSSL's error."""
    for error in errors:
        if found := re.search(r"\[SSL: \w+\] ([^(]+)", str(error)):
            return NoTls(
                f"TLS with the database failed: {found[1].strip()}",
                where=hosts,
                next="check ca, the certificate's names (verify_hostname), and that this port speaks TLS",
            )
    return None
