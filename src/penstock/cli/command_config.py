"""`--command-config FILE`: the TLS and the login of a Kafka, from a properties file as Kafka's own tools take it.

No error and no warning here shows a value of the file except paths, the protocol and the mechanism.
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from difflib import get_close_matches
from pathlib import Path

from penstock.connect.worker.providers import read_properties, read_text
from penstock.errors import PenstockError
from penstock.kafka.brokers import PLAINTEXT
from penstock.kafka.security import SAME, SETTINGS, Security
from penstock.process.paths import usable

ALIASES = {
    "ssl.truststore.location": SAME["ssl.truststore.location"],
    "ssl.keystore.location": "ssl.certificate.location",
}
"""Kafka's names of our settings. With the type PEM, a keystore is a file with a key and its certificates."""
TYPES = ("ssl.truststore.type", "ssl.keystore.type")
KNOWN = tuple(dict.fromkeys((*SETTINGS, *ALIASES, *TYPES)))
UNSUPPORTED = (
    "config.providers",
    "ssl.engine.factory.class",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.truststore.certificates",
)
"""Kafka's settings without which a connection would have another security than the file says."""
NAMES = "ssl.endpoint.identification.algorithm"
"""Our client always checks that a certificate is for the broker's host name, which Kafka calls https."""
UNUSED = (
    NAMES,
    "sasl.client.callback.handler.class",
    "security.providers",
    "ssl.cipher.suites",
    "ssl.enabled.protocols",
    "ssl.keymanager.algorithm",
    "ssl.keystore.password",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
    "ssl.truststore.password",
)
UNUSED_PREFIXES = ("sasl.kerberos.", "sasl.login.", "sasl.oauthbearer.")
SECURITY_PREFIXES = ("ssl.", "sasl.", "security.")
NAME = re.compile(r"acks|retries|[A-Za-z][A-Za-z0-9]*(?:[._-][A-Za-z0-9]+)+")
"""What names of settings look like; anything else may be the rest of a value, such as a password."""
NEAR = 0.85
"""How similar a name must be to one of `KNOWN` to be a misspelt one: client settings of Kafka are less similar."""
PEM = (
    "give PEM files that this user can read, and ssl.key.password if the key has one; to make them of Java's: "
    "keytool -list -rfc -keystore TRUSTSTORE > ca.pem, and openssl pkcs12 -in KEYSTORE -out keystore.pem"
)


def security(args: Namespace) -> Security:
    """The security of `--servers`; without `--command-config` neither TLS nor a login."""
    if args.command_config is None:
        return PLAINTEXT
    if not args.servers:
        raise PenstockError(
            "--command-config needs --servers",
            where=str(args.command_config),
            next="give --servers HOST:PORT,...: a login is only sent to brokers that you name",
        )
    return read(args.command_config)


def read(file: Path) -> Security:
    """Read and check the file and the PEM files that it names; settings without effect are one line of warning."""
    return _checked(file)[1]


def options(file: Path) -> dict[str, str]:
    """The same, as settings for `kafka.read` and `kafka.sink`."""
    return _checked(file)[0]


def _checked(file: Path) -> tuple[dict[str, str], Security]:
    in_file = _settings(file)
    settings = {
        ALIASES.get(name, name): value for name, value in in_file.items() if name in KNOWN and name not in TYPES
    }
    for name, to in ALIASES.items():
        if name in in_file and to in in_file:
            raise PenstockError(f"{name} and {to} are the same setting", where=str(file), next="give one of them")
    try:
        security = Security.of(settings)
    except PenstockError as error:
        raise PenstockError(error.what, where=str(file), next=error.next) from None
    try:
        security.tls()
    except PenstockError as error:
        written = {to: name for name, to in ALIASES.items() if name in in_file}
        where = re.sub(r"ssl\.[a-z.]+(?=:| and )", lambda name: written.get(name[0], name[0]), error.where)
        raise PenstockError(error.what, where=f"{file}: {where}", next=PEM) from error
    if unused := sorted(name for name in in_file if name not in KNOWN):
        print(f"penstock: without effect in {file}: {', '.join(unused)}", file=sys.stderr)
    return settings, security


def _settings(file: Path) -> dict[str, str]:
    """The settings by name; raises PenstockError for those that are misspelt or that we cannot follow."""
    with usable(
        file, "the file of settings cannot be read", "give --command-config a properties file that this user can read"
    ):
        text = read_text(file, "latin-1")
    settings = _parsed(text)
    if settings is None:
        raise PenstockError(
            "the file is not in Java's properties format: a \\u does not begin a character",
            where=str(file),
            next="write it as \\u and four hexadecimal digits, and a backslash as two",
        )
    for name in settings:
        _require_name(name, file)
    for name in TYPES:
        if settings.get(name, "PEM").upper() != "PEM":
            raise PenstockError(f"an unsupported {name} {settings[name]!r}", where=str(file), next=PEM)
    if settings.get(NAMES, "").lower() == "https":
        del settings[NAMES]
    return settings


def _parsed(text: str) -> dict[str, str] | None:
    """The settings, without spaces around values, as in Kafka; None if an escape writes no character of a value."""
    try:
        settings = {name: value.strip() for name, value in read_properties(text).items()}
        # It fails for one half of a pair of code units.
        "".join(settings.values()).encode()
    except ValueError:
        # Not raised again, as its message may show a part of a value.
        return None
    return None if any("\0" in value for value in settings.values()) else settings


def _require_name(name: str, file: Path) -> None:
    if not NAME.fullmatch(name):
        raise PenstockError(
            "a line is not a setting",
            where=str(file),
            next="write NAME=VALUE; where a value goes on in the next line, end the line with a backslash",
        )
    if name in UNSUPPORTED:
        raise PenstockError(
            f"the setting {name} is not supported",
            where=str(file),
            next="write the values themselves into the file, and keys and certificates into PEM files",
        )
    if name in KNOWN or name in UNUSED or name.startswith(UNUSED_PREFIXES):
        return
    close = get_close_matches(name, KNOWN, 1, NEAR)
    if close or name.startswith(SECURITY_PREFIXES):
        close = close or get_close_matches(name, KNOWN, 1)
        step = f"did you mean {close[0]}?" if close else f"use one of {', '.join(KNOWN)}"
        raise PenstockError(f"there is no setting {name}", where=str(file), next=step)
