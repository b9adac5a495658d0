r"""Java's regular expressions in RE2, whose time is linear in the text; pyarrow brings it.

RE2 has no look-around, back references, possessive quantifiers or atomic groups: expressions with these have no equal.
It knows no `$` that may stand before the line's end. That is written in two ways: texts that end with "\r\n" are
matched with one expression, others with the other. Word boundaries are those of ASCII letters, as since Java 19.

A pattern of LIKE becomes an expression that Java itself finds in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark_runtime.java_regex_syntax import (
    BEGIN,
    BOUNDARY,
    END,
    LAST,
    NO_BOUNDARY,
    Anchor,
    Characters,
    Choice,
    Group,
    Node,
    Repeat,
    Sequence,
    Special,
    nodes,
    read,
)

MOST_ELEMENTS = 2_000
"""RE2's time is proportional to the elements, too: this many in a text of a megabyte take seconds."""
_PLACES = {BEGIN: r"\A", END: r"\z", BOUNDARY: r"\b", NO_BOUNDARY: r"\B"}
CODE = re.compile(r"\\U([0-9a-f]{8})|\\[ux]([0-9a-f]{4}|[0-9a-f]{2})")
"""A character in the texts of nodes."""
_NEW_LINE = "\r\n"
_AFTER_NEW_LINE, _AFTER_OTHERS = r"(?:\r\n)?\z", r"[\n\r\x{85}\x{2028}\x{2029}]?\z"
_REPLACEMENT = re.compile(r"\\(?P<literal>.)|\$(?P<number>[0-9])(?![0-9])|(?P<text>[^\\$]+)", re.DOTALL)
Apply = Callable[[Any], Any]
"""A function over Arrow arrays of strings."""


class Re2(NamedTuple):
    """An expression for texts that end with a carriage return and a line feed, and for others."""

    after_new_line: str
    others: str

    def apply(self, ask: Callable[[Any, str], Any]) -> Apply:
        """Asks with the expression that is for the text."""
        if self.after_new_line == self.others:
            return lambda texts: ask(texts, self.others)

        def both(texts: Any) -> Any:
            is_line = pc.ends_with(texts, _NEW_LINE)
            return pc.if_else(is_line, ask(texts, self.after_new_line), ask(texts, self.others))

        return both


def matching(pattern: str) -> Apply:
    """Whether an expression of Java is found in each text; raises ValueError if it has no equal."""
    return _re2(pattern, None).apply(lambda texts, written: pc.match_substring_regex(texts, written))


def extracting(pattern: str, number: int) -> Apply:
    """What a group (0: the whole) has in the first match, "" without one; raises ValueError as `matching`."""

    def extracted(texts: Any, written: str) -> Any:
        group = pc.struct_field(pc.extract_regex(texts, written), "g")
        return pc.if_else(pc.is_null(texts), group, pc.fill_null(group, ""))

    return _re2(pattern, number).apply(extracted)


def replacing(pattern: str, replacement: str) -> Apply:
    """Replaces all matches; raises ValueError as `matching`."""
    if _may_be_empty(read(pattern)[0]):
        raise ValueError("it may match an empty text")
    text = _template(replacement)
    written = _re2(pattern, None, captures=True)
    return written.apply(lambda texts, expression: pc.replace_substring_regex(texts, expression, text))


def re2_characters(text: str) -> str:
    """The characters of a node in RE2's syntax; raises ValueError if it has none."""
    if "&&" in text or "[" in text[1:] or "(?i" in text or (re.search(r"\\p\{..", text) and _is_named(text)):
        raise ValueError("it has an intersection of sets, a set in a set, or a script")
    return CODE.sub(lambda code: rf"\x{{{int(code[1] or code[2], 16):x}}}", text)


def _is_named(text: str) -> bool:
    """Whether it has a property whose name is longer than that of a category."""
    return any(len(name) > 2 for name in re.findall(r"\\p\{([^}]*)\}", text))


def _re2(pattern: str, number: int | None, *, captures: bool = False) -> Re2:
    node, size = read(pattern)
    if size > MOST_ELEMENTS:
        raise ValueError(f"it has more than {MOST_ELEMENTS} elements")
    if number is not None and _repeats_nothing(node):
        raise ValueError("it repeats a group that may be empty")
    written = Re2(*(_Writer(last, number, captures).whole(node) for last in (_AFTER_NEW_LINE, _AFTER_OTHERS)))
    for expression in written:
        try:
            pc.match_substring_regex(pa.array([""]), expression)
        except pa.ArrowInvalid as error:
            raise ValueError(f"RE2 refuses it: {str(error)[:200]}") from None
    return written


class _Writer:
    """Writes a tree; `last` is what LAST means, `number` the group to name, if one is asked for."""

    def __init__(self, last: str, number: int | None, captures: bool) -> None:
        self._last, self._number, self._captures, self._groups = last, number, captures, 0
        self._is_whole = captures or number == 0
        """Whether the line's end, which `last` takes, would belong to what is found."""

    def whole(self, node: Node) -> str:
        text = self._text(node, True)
        if self._number is not None and self._number > self._groups:
            raise ValueError(f"it has no group {self._number}")
        return f"(?P<g>{text})" if self._number == 0 else text

    def _text(self, node: Node, is_tail: bool) -> str:
        match node:
            case Characters(text):
                return re2_characters(text)
            case Anchor(text):
                return self._place(text, is_tail)
            case Special(_, source):
                raise ValueError(f"it has {source}")
            case Sequence(parts):
                tails = (is_tail and at == len(parts) - 1 for at in range(len(parts)))
                return "".join(map(self._text, parts, tails))
            case Choice(parts):
                return "|".join(self._text(part, is_tail) for part in parts)
            case Group(head, body):
                return f"{self._head(head)}{self._text(body, is_tail)})"
            case Repeat(body, quantifier, _, _, source):
                if quantifier[1:].endswith("+"):
                    raise ValueError(f"{source} is possessive")
                return f"(?:{self._text(body, False)}){quantifier}"

    def _place(self, text: str, is_tail: bool) -> str:
        if text == LAST and is_tail and not self._is_whole:
            return self._last
        if text not in _PLACES:
            raise ValueError("it has an anchor that RE2 lacks, or $ where the line's end would be taken")
        return _PLACES[text]

    def _head(self, head: str) -> str:
        if head == "(" or head.startswith("(?P<"):
            self._groups += 1
            if self._captures:
                return "("
            return "(?P<g>" if self._groups == self._number else "(?:"
        if head != "(?:":
            raise ValueError("it has a look-around or an atomic group")
        return head


def _template(replacement: str) -> str:
    """Java's replacement as RE2's."""
    parts, at = [], 0
    while at < len(replacement):
        part = _REPLACEMENT.match(replacement, at)
        if part is None:
            raise ValueError("its replacement has a name, or a number above 9")
        at = part.end()
        text = part["literal"] or part["text"]
        parts.append(rf"\{part['number']}" if text is None else text.replace("\\", r"\\"))
    return "".join(parts)


def _may_be_empty(node: Node) -> bool:
    match node:
        case Characters():
            return False
        case Sequence(parts):
            return all(map(_may_be_empty, parts))
        case Choice(parts):
            return any(map(_may_be_empty, parts))
        case Group(_, body):
            return _may_be_empty(body)
        case Repeat(body, _, least):
            return not least or _may_be_empty(body)
        case _:
            return True


def _repeats_nothing(node: Node) -> bool:
    """Whether it repeats a group that may be empty: what is captured then is another matter than in Java."""
    return any(isinstance(part, Repeat) and _may_be_empty(part.body) for part in nodes(node))


# LIKE.

MOST_PIECES = 1_000
"""Pieces between the % of a pattern of LIKE: Java calls itself for each."""
_SIMPLE_LIKE = re.compile(r"%?[^%_]*%?")
"""For these, without an escape, Spark looks for the text itself."""


def linear_like(pattern: str, escape: str) -> str | None:
    """The expression of Java that is found in the texts that are LIKE the pattern; None if Spark's way is linear, too.

    Spark's own expression for `%a%b%c` goes back from c to every b, and from there to every a. To take the first a,
    then the first b behind it, and so on, finds a match wherever there is one: Java does not go back into what it has
    taken. Raises ValueError if the pattern has too many pieces.
    """
    tokens = _tokens(pattern, escape)
    is_simple = _SIMPLE_LIKE.fullmatch(pattern) and escape not in pattern
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
