"""Which settings of Kafka Connect are secrets by their names, and the secrets in URLs of others."""

from __future__ import annotations

import re
from collections.abc import Iterator

HIDDEN = "[hidden]"
FEW = 20
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
    parts, at = [], 0
    places = list(_login_places(text))
    for start, end in places:
        if start >= at:
            parts += [text[at:start], HIDDEN]
        at = max(at, end)
    hidden = "".join([*parts, text[at:]])
    # Messages repeat the login of a URL, such as "u:p@host", outside of it. A text with many logins is not a message.
    for login in list(dict.fromkeys(text[start:end] for start, end in places))[:FEW]:
        hidden = hidden.replace(f":{login}@", f":{HIDDEN}@").replace(f"//{login}@", f"//{HIDDEN}@")
        hidden = hidden.replace(f"={login}", f"={HIDDEN}")
    return hidden


def logins(text: str) -> Iterator[str]:
    """The secret parts of URLs in a string: the password before `@`, or the user without one, and those of queries."""
    return (text[start:end] for start, end in _login_places(text))


def _login_places(text: str) -> Iterator[tuple[int, int]]:
    """Where the secrets of URLs begin and end, in order; those of one URL may overlap."""
    if "://" not in text:
        return
    begin = 0
    for end, following in [*(match.span() for match in _URL_OF_LIST.finditer(text)), (len(text), len(text))]:
        yield from sorted(_places_of_url(text[begin:end], begin))
        begin = following


def _places_of_url(url: str, begin: int) -> Iterator[tuple[int, int]]:
    """The same for one URL, which begins at `begin`."""
    scheme, separator, rest = url.partition("://")
    begin += len(scheme) + len(separator)
    login, at, _ = rest.rpartition("@")
    user, colon, password = login.partition(":")
    if scheme and at and (password if colon else user):
        yield begin + len(user) + len(colon) if colon else begin, begin + len(login)
    for match in _LOGIN_IN_QUERY.finditer(rest):
        yield begin + match.start(1), begin + match.end(1)
