"""Which settings of Kafka Connect are secrets by their names, and the secrets in URLs of others."""

from __future__ import annotations

import re
from collections.abc import Iterator

HIDDEN = "[hidden]"
_SECRET = re.compile(
    r"passw(or)?d|passphrase|passcode|(^|[._-])(pass|pwd)($|[._-])|secret|token|jaas|user\.info|\.key$"
    # The source of credentials is not a secret.
    r"|credential(?!s\.(source|provider))|(private|api|access)[._-]?key",
    re.IGNORECASE,
)
_ALIAS = re.compile(r"(transforms|predicates)\.[^.]*\.")
_LOGIN_IN_QUERY = re.compile(
    r"[?&;](?:user|username)?(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key)=([^&;,\s]+)", re.IGNORECASE
)
_URL_OF_LIST = re.compile(r"\s+|,(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)")


def has_secret_name(setting: str) -> bool:
    """Whether the setting's name says that its value is a secret; the names that users give to transforms do not."""
    return bool(_SECRET.search(_ALIAS.sub("", setting, 1)))


def without_logins(text: str) -> str:
    """The text without the secrets in its URLs."""
    for login in dict.fromkeys(logins(text)):
        text = text.replace(f":{login}@", f":{HIDDEN}@").replace(f"//{login}@", f"//{HIDDEN}@")
        text = text.replace(f"={login}", f"={HIDDEN}")
    return text


def logins(text: str) -> Iterator[str]:
    """The secret parts of URLs in a string: the password before `@`, or the user without one, and those of queries."""
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
