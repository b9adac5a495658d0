"""How to reach a cluster: addresses, a user, TLS, a consistency level; plain data, without a connection."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict

from penstock.durations import keywords, require_known
from penstock.errors import PenstockError

Consistency: TypeAlias = Literal[
    "ANY", "ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "SERIAL", "LOCAL_SERIAL", "LOCAL_ONE"
]


class AccessOptions(TypedDict, total=False):
    """The arguments of functions that reach a cluster, besides `hosts`; `Access` describes them."""

    user: str
    password: str
    local_dc: str
    consistency: Consistency
    tls: bool
    ca: str
    certificate: str
    key: str
    verify_hostname: bool


class NoTls(PenstockError):
    """TLS cannot be set up; waiting will not help."""


@dataclass(frozen=True)
class Access:
    """How to reach a cluster: `hosts` is "host:port,..." (the default port is 9042; IPv6 in brackets).

    `tls` turns on encryption. `ca`, `certificate` and `key` are paths of PEM files, read on each machine that connects.
    Without `ca` the system's authorities are trusted. With `verify_hostname` a node's certificate must name the node.
    `translated` are pairs of addresses: the one that a node has in its cluster, and the one where it is reached.
    """

    hosts: str
    user: str = ""
    password: str = field(default="", repr=False)
    local_dc: str = ""
    consistency: str = "QUORUM"
    tls: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""
    verify_hostname: bool = True
    translated: tuple[tuple[str, str], ...] = ()

    def endpoints(self) -> list[tuple[str, int]]:
        return [_endpoint(host.strip()) for host in self.hosts.split(",") if host.strip()]

    def translations(self) -> dict[tuple[str, int], tuple[str, int]]:
        """Where nodes are reached, by their own addresses."""
        return {_endpoint(own): _endpoint(reached) for own, reached in self.translated}

    def tls_context(self) -> ssl.SSLContext | None:
        """A context from the files on this machine; None without TLS.

        Raises NoTls if a file cannot be read, or `key` is given without `certificate`.
        """
        if self.key and not self.certificate:
            raise NoTls("key is given without certificate", where=self.key, next="give the certificate's file too")
        if not (self.tls or self.ca or self.certificate):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            context.check_hostname = self.verify_hostname
            if self.certificate:
                # A function even without a password: otherwise OpenSSL asks for the password at the terminal.
                context.load_cert_chain(self.certificate, self.key or None, lambda: "")
        except OSError as error:
            raise NoTls(
                f"the files for TLS cannot be read: {error}",
                where=", ".join(filter(None, (self.ca, self.certificate, self.key))),
                next="give PEM files that exist on every machine that reads, with a key that has no password",
            ) from error
        return context

    @classmethod
    def of(
        cls, hosts: str, options: Mapping[str, Any], *, where: str, function: Callable[..., object] | None = None
    ) -> Access:
        """Build it from the remaining arguments of `function`, which users call by the name `where`.

        Raises PenstockError for an unknown argument or an address that is not valid.
        """
        if unknown := options.keys() - AccessOptions.__annotations__:
            own = keywords(function) if function else ["hosts"]
            require_known(sorted(unknown), [*own, *AccessOptions.__annotations__], where=where)
        access = cls(hosts, **options)
        if not access.endpoints():
            raise PenstockError("hosts has no address", where=where, next='write it as "10.0.0.1:9042,10.0.0.2:9042"')
        return access


def _endpoint(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", text)
    port = int(match[3] or 9042) if match else 0
    if not match or not 0 < port < 65536:
        raise PenstockError(f"{text!r} is not a valid address", next='give hosts as "10.0.0.1:9042,10.0.0.2:9042"')
    return match[1] or match[2], port
