r"""LIKE in time that is linear in the text.

Spark's own expression for `%a%b%c` goes back from c to every b, and from there to every a. To take the first a, then
the first b behind it, and so on, finds a match wherever there is one: Java does not go back into what it has taken.
"""

from __future__ import annotations

import re
from itertools import groupby

MOST_PIECES = 1_000
"""Java calls itself for each piece."""
_SIMPLE = re.compile(r"%?[^%_]*%?")
"""For these, without an escape, Spark looks for the text itself."""


def linear_regex(pattern: str, escape: str) -> str | None:
    """The expression of Java that is found in the texts that are LIKE the pattern; None if Spark's way is linear, too.

    Raises ValueError if it has too many pieces.
    """
    tokens = _tokens(pattern, escape)
    is_simple = _SIMPLE.fullmatch(pattern) and escape not in pattern
    if tokens is None or is_simple or sum(token is ANY for token in tokens) < 2:
        return None
    pieces = _pieces(tokens)
    if len(pieces) > MOST_PIECES:
        raise ValueError(f"it has more than {MOST_PIECES} pieces between %")
    first, *inner, last = pieces
    taken = "".join(f"(?>.*?{piece})" for piece in inner if piece)
    return rf"(?s)\A{first}{taken}" + (rf"(?>.*?{last}\z)" if last else "")


ANY, ONE = object(), object()
"""What % and _ stand for."""


def _tokens(pattern: str, escape: str) -> list[object] | None:
    """Characters, ANY and ONE; None if the escape character stands before another character, which Spark refuses."""
    tokens: list[object] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("_", "%", escape):
                return None
            tokens.append(escaped)
        else:
            tokens.append({"%": ANY, "_": ONE}.get(character, character))
    return tokens


def _pieces(tokens: list[object]) -> list[str]:
    """The expressions of what is between %."""
    pieces = [""]
    for token, run in groupby(tokens):
        if token is ANY:
            pieces.append("")
        elif token is ONE:
            pieces[-1] += f".{{{len(list(run))}}}"
        else:
            pieces[-1] += rf"\x{{{ord(str(token)):x}}}" * len(list(run))
    return pieces
