"""Kafka's settings under their usual names, with TLS and SASL, for our own client: read on the driver, used in workers.

An SSL context cannot be sent to another process, so each process makes its own from files on its machine. No error and
no `repr` here shows a password.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from penstock.errors import PenstockError
from penstock.wire import sasl
from penstock.wire.cluster import addresses
from penstock.wire.sasl import Authenticate

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SETTINGS = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "sasl.jaas.config",
    "ssl.ca.location",
    "ssl.truststore.type",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
)

SAME = {"compression": "compression.type", "ssl.truststore.location": "ssl.ca.location"}
"""Aliases of settings."""
_SPARKS = ("checkpointlocation", "queryname")
"""Spark's own options, which it passes to every sink."""

# The form of Kafka's "Dynamic JAAS configuration" (KIP-85): a module, a flag, options, a semicolon. Values are quoted
# as in java.io.StreamTokenizer, except its octal escapes, which are not supported.
_VALUE = r""""(?:[^"\\\n]|\\[^0-7])*"|'(?:[^'\\\n]|\\[^0-7])*'|[^\s;"']+"""
_OPTION = re.compile(rf"\s+([\w.]+)\s*=\s*({_VALUE})")
_JAAS = re.compile(rf"\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)((?:{_OPTION.pattern})*)\s*;\s*")
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def by_name(settings: Mapping[str, str], known: Collection[str], subject: str) -> dict[str, str]:
    """Each setting under its main name, in lower case as Spark passes options.

    Raises `PenstockError` for a name that is not in `known`, or is given twice; `subject` is for the message.
    """
    options: dict[str, str] = {}
    for written, value in settings.items():
        name = written.lower().removeprefix("kafka.")
        if name in _SPARKS:
            continue
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise PenstockError(f"{subject} has no option {name!r}", next=f"{hint}use one of {', '.join(known)}")
        name = SAME.get(name, name)
        if name in options:
            next = "give it once; aliases and names with the prefix kafka. mean the same option"
            raise PenstockError(f"{subject} has {name} twice", next=next)
        options[name] = value
    return options


def require_servers(servers: str, where: str, *, next: str = "") -> None:
    """Raise `PenstockError` if `servers` is not a list of host:port."""
    try:
        addresses(servers)
    except ValueError as error:
        raise PenstockError(str(error), where=where, next=next) from None


@dataclass(frozen=True)
class Security:
    """How connections are protected; `of` makes and checks it."""

    protocol: str
    mechanism: str
    user: str
    password: str = field(repr=False)
    authorities: str | None
    certificate: str | None
    key: str | None
    key_password: str = field(repr=False)

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Security:
        """Reads the `SETTINGS`; raises `PenstockError` if they are not valid together."""
        protocol = settings.get("security.protocol", "PLAINTEXT").upper()
        _one_of("security.protocol", protocol, PROTOCOLS)
        _unused(settings, "ssl.", protocol, "SSL", "SASL_SSL")
        _unused(settings, "sasl.", protocol, "SASL_PLAINTEXT", "SASL_SSL")
        _one_of("ssl.truststore.type", settings.get("ssl.truststore.type", "PEM").upper(), ("PEM",))
        if "ssl.key.location" in settings and "ssl.certificate.location" not in settings:
            raise _wrong("ssl.key.location without ssl.certificate.location", "give the certificate's file too")
        mechanism, user, password = _login(settings) if protocol.startswith("SASL_") else ("", "", "")
        return cls(
            protocol,
            mechanism,
            user,
            password,
            settings.get("ssl.ca.location"),
            settings.get("ssl.certificate.location"),
            settings.get("ssl.key.location"),
            settings.get("ssl.key.password", ""),
        )

    def tls(self) -> ssl.SSLContext | None:
        """A context from files on this machine; without `ssl.ca.location` it trusts the system's authorities."""
        if not self.protocol.endswith("SSL"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.authorities)
        except OSError as error:
            raise _unreadable("ssl.ca.location", self.authorities, error) from error
        if self.certificate:
            try:
                # A function, also without a password: otherwise OpenSSL would ask for it on the terminal.
                context.load_cert_chain(self.certificate, self.key, lambda: self.key_password)
            except OSError as error:
                files = ", ".join(filter(None, (self.certificate, self.key)))
                raise _unreadable("ssl.certificate.location and ssl.key.location", files, error) from error
        return context

    def authenticate(self) -> Authenticate | None:
        if not self.mechanism:
            return None
        if self.mechanism == "PLAIN":
            return sasl.plain(self.user, self.password)
        return sasl.scram(self.user, self.password, digest=f"sha{self.mechanism.removeprefix('SCRAM-SHA-')}")


def _wrong(what: str, next: str) -> PenstockError:
    return PenstockError(f"the Kafka settings have {what}", next=next)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise _wrong(f"an unsupported {name} {value!r}", f"use {', '.join(known)}")


def _unused(settings: Mapping[str, str], prefix: str, protocol: str, *users: str) -> None:
    """Raise for settings that would be ignored, such as a certificate for a connection without TLS."""
    unused = [name for name in settings if name.startswith(prefix)]
    if unused and protocol not in users:
        fit = " or ".join(users)
        raise _wrong(f"no use for {', '.join(unused)}", f"set security.protocol to {fit}; it is {protocol}")


def _login(settings: Mapping[str, str]) -> tuple[str, str, str]:
    mechanism = settings.get("sasl.mechanism", "").upper()
    _one_of("sasl.mechanism", mechanism, MECHANISMS)
    login, jaas = {"sasl.username", "sasl.password"} & set(settings), settings.get("sasl.jaas.config")
    if bool(login) == (jaas is not None):
        raise _wrong("no user, or two", "give either sasl.username and sasl.password, or sasl.jaas.config")
    user, password = (
        (settings.get("sasl.username"), settings.get("sasl.password")) if jaas is None else _user_of_jaas(jaas)
    )
    if not user or not password:
        raise _wrong("no user name or no password", "give both")
    return mechanism, user, password


def _user_of_jaas(text: str) -> tuple[str | None, str | None]:
    match = _JAAS.fullmatch(text)
    if not match:
        form = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="..." password="...";'
        raise _wrong("a sasl.jaas.config that cannot be read", f"write it as {form}")
    options = {name: _unquoted(value) for name, value in _OPTION.findall(match[1])}
    return options.get("username"), options.get("password")


def _unquoted(value: str) -> str:
    if value[0] not in "\"'":
        return value
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), value[1:-1], flags=re.DOTALL)


def _unreadable(name: str, files: str | None, error: OSError) -> PenstockError:
    return PenstockError(
        f"the TLS files cannot be read: {error}",
        where=f"{name}: {files}",
        next="give PEM files that are on every machine that runs tasks, and ssl.key.password if the key has one",
    )
