"""Which parts of a configuration are secret, and how configurations and messages are shown without them.

A configuration is shown as it was given, never with what its references stand for; of it, values of properties that
hold secrets by their name are hidden, and logins in URLs. Messages are made by many, from values that are in use:
every secret that the worker has in use is looked for in them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

from penstock.connect.definition import HIDDEN
from penstock.connect.properties import properties
from penstock.connect.providers import REFERENCE, ResolvedConfig

SECRET = re.compile(
    r"passw(or)?d|passphrase|passcode|(^|[._-])(pass|pwd)($|[._-])|secret|token|jaas|user\.info|\.key$"
    # Where credentials stand is none.
    r"|credential(?!s\.(source|provider))|(private|api|access)[._-]?key",
    re.IGNORECASE,
)
_TYPES = {each.name: each.type for each in properties()}
_ALIAS = re.compile(r"(transforms|predicates)\.[^.]*\.")
_LOGIN_IN_QUERY = re.compile(
    r"[?&;](?:user|username)?(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key)=([^&;,\s]+)", re.IGNORECASE
)
_ASSIGNED = re.compile(
    r"[\w.]*(?:passw|secret|token|credential)[\w.]*\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s;,\"']+))", re.IGNORECASE
)
_URL_OF_LIST = re.compile(r"\s+|,(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)")
_PIECE = re.compile(r"[^\s,;:=@/\"']{4,}")
SHORT = 4
"""Characters: shorter secrets are looked for as whole words only, or messages would be made of little else."""
MOST = 4096
"""Characters of a value up to which its pieces are looked for, too."""


def is_secret(name: str) -> bool:
    """Whether a property holds what nobody may see: by its type if it is known here, else by its name."""
    if name in _TYPES:
        return _TYPES[name] == "PASSWORD"
    return bool(SECRET.search(_ALIAS.sub("", name, 1)))


def masked(config: Mapping[str, str]) -> dict[str, str]:
    """The configuration with its secrets hidden."""
    return {name: _masked(name, text) for name, text in config.items()}


def restored(config: Mapping[str, str], kept: Mapping[str, str]) -> dict[str, str]:
    """What a client sends that changes what it was shown: hidden values are those that are kept."""
    return {
        name: kept[name] if name in kept and HIDDEN in text and _masked(name, kept[name]) == text else text
        for name, text in config.items()
    }


def unrestored(config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is wrong with hidden values for which none was kept, as pairs of property and message."""
    for name, text in config.items():
        if HIDDEN in text and (is_secret(name) or any(HIDDEN in login for login in _logins(text))):
            yield (
                name,
                f"{HIDDEN} is what is shown instead of a secret, and this connector has none at this property that was "
                "shown so. Next: give the value itself, or a reference to where it stands",
            )


def of_config(given: ResolvedConfig) -> dict[str, str]:
    """The secrets of a configuration in use, and what is shown instead."""
    found = {}
    for name, reference, text in given.found:
        if is_secret(name):
            found[text] = reference
        elif text.strip().lower() not in ("true", "false"):
            pieces = [*text.split(","), *_PIECE.findall(text)] if len(text) <= MOST else []
            found |= {piece: reference for piece in (text, *pieces) if len(piece.strip()) >= SHORT}
    for name, text in given.config.items():
        secrets = [*_logins(text)]
        if is_secret(name):
            secrets += [text, *_assigned(text), *(line for line in text.splitlines() if len(line) > 2 * SHORT)]
            secrets += [text.partition(":")[2]] if name.endswith("user.info") else []
        found |= {secret: HIDDEN for secret in secrets if secret not in found}
    return found


class Secrets:
    """All secrets that a worker has in use, by whose they are; its methods may be called from any thread."""

    def __init__(self, own: Mapping[str, str] | None = None) -> None:
        self._by_owner: dict[str, Mapping[str, str]] = {"": dict(own or {})}
        self._hiding = Hiding(self._by_owner.values())

    def keep(self, owner: str, secrets: Mapping[str, str]) -> None:
        """These are the owner's from now on."""
        self._by_owner = {**self._by_owner, owner: dict(secrets)}
        self._hiding = Hiding(self._by_owner.values())

    def hide(self, text: str) -> str:
        """A message without them."""
        return self._hiding(text)


class Hiding:
    """Replaces secrets in messages, in the forms in which they are written there."""

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
        return _without_logins(text)


class HidingFormatter(logging.Formatter):
    """Writes lines of a log without secrets, tracebacks included."""

    def __init__(self, form: str, secrets: Secrets) -> None:
        super().__init__(form)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets.hide(super().format(record))


def _masked(name: str, text: str) -> str:
    if is_secret(name):
        # A reference shows only where a secret stands.
        return text if REFERENCE.fullmatch(text) else HIDDEN
    return _without_logins(text)


def _without_logins(text: str) -> str:
    for login in dict.fromkeys(_logins(text)):
        text = text.replace(f":{login}@", f":{HIDDEN}@").replace(f"//{login}@", f"//{HIDDEN}@")
        text = text.replace(f"={login}", f"={HIDDEN}")
    return text


def _logins(text: str) -> Iterator[str]:
    """The secret parts of URLs in a text: the password before `@`, or all that stands there, and those of queries."""
    if "://" not in text:
        return
    for url in _URL_OF_LIST.split(text):
        _, scheme, rest = url.partition("://")
        login, at, _ = rest.rpartition("@")
        if scheme and at and login:
            user, colon, password = login.partition(":")
            if secret := password if colon else user:
                yield secret
        for match in _LOGIN_IN_QUERY.finditer(rest):
            yield match[1]


def _assigned(text: str) -> Iterator[str]:
    """The secrets in a line of JAAS: `password="..."`."""
    for match in _ASSIGNED.finditer(text):
        yield next(group for group in match.groups() if group is not None)


def _forms(secret: str) -> set[str]:
    """A secret as it is, and as it is written in JSON, in Python and in URLs."""
    stripped = secret.strip()
    forms = {secret, stripped, json.dumps(stripped)[1:-1], repr(stripped)[1:-1], quote(stripped), quote_plus(stripped)}
    return {form for form in forms if form.strip()}
