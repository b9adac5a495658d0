"""The query of a URL: names and values, as HTML forms and `URLSearchParams` write them."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from penstock.source.http.answers import Refused


def parameters(query: bytes, most: int) -> dict[str, str]:
    """Each parameter once; raises Refused if one comes twice, there are more than `most`, or text is not UTF-8.

    Bytes that are not UTF-8 are refused rather than replaced: keys that differ would become the same.
    """
    if query.count(b"&") >= most:
        raise Refused(400, f"the query has more than {most} parameters")
    found: dict[str, str] = {}
    for part in query.split(b"&"):
        if not part:
            continue
        name, _, value = part.partition(b"=")
        try:
            text, of = _text(name), _text(value)
        except UnicodeDecodeError:
            shown = part[:100].decode("ascii", "backslashreplace")
            raise Refused(400, f"the query is not UTF-8 in {shown}") from None
        if text in found:
            raise Refused(400, f"the query has {text[:100]!r} twice")
        found[text] = of
    return found


def _text(part: bytes) -> str:
    return unquote_to_bytes(part.replace(b"+", b" ")).decode()
