"""TLS with a database: the context of a connection, and what is said when there is none."""

from __future__ import annotations

import ssl

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


def refused(error: ssl.SSLError, hosts: str) -> NoTls:
    """A handshake that failed."""
    return NoTls(
        f"no TLS with the database: {getattr(error, 'verify_message', '') or error.reason or error}",
        where=hosts,
        next="check ca, the certificate's names (verify_hostname), and that this port speaks TLS",
    )
