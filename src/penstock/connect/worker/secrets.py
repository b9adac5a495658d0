"""Hides secrets in configurations and messages.

A configuration is shown as it was given, with its references, never with their values. In it, values of properties
with a secret's name and logins in URLs are hidden. Messages come from many places and may contain values in use: every
secret that the worker uses is replaced in them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

from penstock.connect.source.properties import properties
from penstock.connect.worker.providers import ResolvedConfig, is_reference
from penstock.process.secret_settings import HIDDEN, has_secret_name, logins, without_logins

_TYPES = {each.name: each.type for each in properties()}
# Without a second attempt anywhere: it begins with words only, and gives nothing back.
_ASSIGNED = re.compile(r"(?<![\w.])([\w.]++)\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s;,\"']++))")
_SECRET_WORD = re.compile("passw|secret|token|credential", re.IGNORECASE)
_PIECE = re.compile(r"[^\s,;:=@/\"']{4,}")
_PLACE = re.compile(r"(url|urls|addresses|servers|\.user|username)$", re.IGNORECASE)
SHORT = 4
"""In characters: shorter secrets are replaced as whole words only, as they would match too much of a message."""
MOST = 4096
"""In characters: the pieces of longer values are not searched for."""


def is_secret(name: str) -> bool:
    """Whether a property's value is a secret: by its type if the property is known, else by its name."""
    if name in _TYPES:
        return _TYPES[name] == "PASSWORD"
    return has_secret_name(name)


def masked(config: Mapping[str, str]) -> dict[str, str]:
    """The configuration with its secrets hidden."""
    return {name: _masked(name, text) for name, text in config.items()}


def restored(config: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
    """The configuration of a client that changed what it was shown: hidden values are taken from `stored`.

    Not if the client also changed to which host or user they belong: it would get the password sent to its own.
    """

    def is_hidden(name: str, text: str) -> bool:
        return HIDDEN in text and _is_shown(name, text, stored) and _stays(_family(name), config, stored)

    return {name: stored[name] if is_hidden(name, text) else text for name, text in config.items()}


def _family(name: str) -> str:
    """What a secret belongs to: the database, or one converter, transform, or the producer."""
    first, _, rest = name.partition(".")
    return first if first in ("scylla", "connection") else f"{first}.{rest.partition('.')[0]}"


def _is_shown(name: str, text: str | None, stored: Mapping[str, str]) -> bool:
    """Whether the text is what a client sees of the stored value."""
    return name in stored and _masked(name, stored[name]) == text


def _stays(family: str, config: Mapping[str, str], stored: Mapping[str, str]) -> bool:
    """Whether the hosts and users of a family are the stored ones."""
    names = (name for name in {**config, **stored} if name.startswith(f"{family}.") and _PLACE.search(name))
    return all(config.get(name) == stored.get(name) or _is_shown(name, config.get(name), stored) for name in names)


def unrestored(config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Errors of hidden values that were not restored, as pairs of property and message."""
    for name, text in config.items():
        if HIDDEN in text and (is_secret(name) or any(HIDDEN in login for login in logins(text))):
            yield (
                name,
                f"{HIDDEN} is shown instead of a secret, and this connector has no secret in this property, or one for "
                "another host or user. "
                "Next: give the value itself, or a reference to it",
            )


def of_config(resolved: ResolvedConfig) -> dict[str, str]:
    """The secrets of a configuration in use, with their replacements in messages."""
    replacements = {}
    for name, reference, text in resolved.references:
        if is_secret(name):
            replacements[text] = reference
        elif text.strip().lower() not in ("true", "false"):
            pieces = [*text.split(","), *_PIECE.findall(text)] if len(text) <= MOST else []
            replacements |= {piece: reference for piece in (text, *pieces) if len(piece.strip()) >= SHORT}
    for name, text in resolved.config.items():
        secrets = [*logins(text)]
        if is_secret(name):
            secrets += [text, *_assigned(text), *(line for line in text.splitlines() if len(line) > 2 * SHORT)]
            secrets += [text.partition(":")[2]] if name.endswith("user.info") else []
        replacements |= {secret: HIDDEN for secret in secrets if secret not in replacements}
    return replacements


class Secrets:
    """All secrets that a worker uses, by owner; its methods may be called from any thread."""

    def __init__(self, own: Mapping[str, str] | None = None) -> None:
        self._by_owner: dict[str, Mapping[str, str]] = {"": dict(own or {})}
        self._hiding = Hiding(self._by_owner.values())

    def keep(self, owner: str, secrets: Mapping[str, str]) -> None:
        """Replace the owner's secrets."""
        self._by_owner = {**self._by_owner, owner: dict(secrets)}
        self._hiding = Hiding(self._by_owner.values())

    def hide(self, text: str) -> str:
        """The message without secrets."""
        return self._hiding(text)


class Hiding:
    """Replaces secrets in messages, also in their JSON, Python and URL forms."""

    def __init__(self, secrets: Iterable[Mapping[str, str]]) -> None:
        self._shown: dict[str, str] = {}
        for some in secrets:
            for secret, shown in some.items():
                self._shown |= dict.fromkeys(_forms(secret), shown)
        words = sorted(self._shown, key=len, reverse=True)
        bounded = (rf"(?<!\w){re.escape(word)}(?!\w)" if len(word) < SHORT else re.escape(word) for word in words)
        self._pattern = re.compile("|".join(bounded)) if words else None

    def __call__(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(lambda match: self._shown[match[0]], text)
        return without_logins(text)


class HidingFormatter(logging.Formatter):
    """Formats log lines and tracebacks without secrets."""

    def __init__(self, form: str, secrets: Secrets) -> None:
        super().__init__(form)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets.hide(super().format(record))


def _masked(name: str, text: str) -> str:
    if is_secret(name):
        # A reference shows only the source of a secret.
        return text if is_reference(text) else HIDDEN
    return without_logins(text)


def _assigned(text: str) -> Iterator[str]:
    """The secrets in a JAAS line: `password="..."`."""
    for match in _ASSIGNED.finditer(text):
        name, *values = match.groups()
        if _SECRET_WORD.search(name):
            yield next(value for value in values if value is not None)


def _forms(secret: str) -> set[str]:
    """A secret as it is, and as written in JSON, in Python and in URLs; without the space around it."""
    bare = secret.strip()
    return {bare, json.dumps(bare)[1:-1], repr(bare)[1:-1], quote(bare), quote_plus(bare)} - {""}
