"""Java's syntax of regular expressions: read into a tree, and written again in the syntax of the package `regex`.

A reader goes over the pattern once, as Java's compiler does, and writes each element so that it needs no flag: a
letter without case becomes a set of two, a dot the set of what it does not match. What has no equal is refused, and so
are the extensions of `regex` (recursion, fuzzy matching), which Java does not know. Lengths are bounded here, too:
`regex` writes out what a group repeats.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

LONGEST_PATTERN = 10_000
MOST_ELEMENTS = 20_000
"""The elements of an expression, with those of `{n}` written out n times."""
_FLAGS = frozenset("idmsux")
_LETTERS = (ord("A"), ord("Z")), (ord("a"), ord("z"))
_BREAKS = r"\x0a\x0d\x85\u2028\u2029"
_NOT_INSIDE_BREAK = r"(?!(?<=\x0d)\x0a)"
_WORD = "0-9A-Z_a-z"
_SPACE = r"\x09-\x0d\x20"
_SETS = {
    "d": "0-9",
    "w": _WORD,
    "s": _SPACE,
    "h": r"\x20\x09\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000",
    "v": r"\x0b\x0c" + _BREAKS,
}
_POSIX = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7f",
    "Alpha": "A-Za-z",
    "Digit": "0-9",
    "Alnum": "0-9A-Za-z",
    "Punct": r"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e",
    "Graph": r"\x21-\x7e",
    "Print": r"\x20-\x7e",
    "Blank": r"\x20\x09",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9A-Fa-f",
    "Space": _SPACE,
}
_KINDS = {"C": "cfnos", "L": "lmotu", "M": "cen", "N": "dlo", "P": "cdefios", "S": "ckmo", "Z": "lps"}
_CATEGORIES = frozenset(first + second for first, seconds in _KINDS.items() for second in ("", *seconds))
_BINARY = {
    "ALPHABETIC": r"\p{Alphabetic}",
    "LETTER": r"\p{L}",
    "DIGIT": r"\p{Nd}",
    "LOWERCASE": r"\p{Lowercase}",
    "UPPERCASE": r"\p{Uppercase}",
    "PUNCTUATION": r"\p{P}",
    "WHITE_SPACE": r"\p{White_Space}",
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
BEGIN, END = r"\A", r"\Z"
LAST = rf"(?:{_NOT_INSIDE_BREAK}(?=(?:\x0d\x0a|[{_BREAKS}])?\Z))"
"""The end of the text, or the place before the line's end there."""
_IS_EDGE = rf"(?<=[{_WORD}])(?![{_WORD}])|(?<![{_WORD}])(?=[{_WORD}])"
BOUNDARY, NO_BOUNDARY = f"(?:{_IS_EDGE})", f"(?!{_IS_EDGE})"
ANY = "(?s:.)"


@dataclass(frozen=True)
class Characters:
    """One character, of a set."""

    text: str


@dataclass(frozen=True)
class Anchor:
    """What takes no characters: BEGIN, END, LAST, BOUNDARY, NO_BOUNDARY, or another."""

    text: str


@dataclass(frozen=True)
class Special:
    """A reference to a group, or a character of several code points; `source` is as the user wrote it."""

    text: str
    source: str


@dataclass(frozen=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Group:
    """`head` is how it begins: "(", "(?:", "(?P<name>", "(?>", or that of a look-around."""

    head: str
    body: Node


@dataclass(frozen=True)
class Repeat:
    """`quantifier` is as written; `most` is None without an upper bound; `source` is as the user wrote it."""

    body: Node
    quantifier: str
    least: int
    most: int | None
    source: str


_ANY_BREAK = Characters(rf"[\x0b\x0c{_BREAKS}]")
Node: TypeAlias = Characters | Anchor | Special | Sequence | Choice | Group | Repeat
Element = tuple[Node, int]
"""A part of the expression, and how many elements it has if what it repeats is written out."""


def read(pattern: str) -> Element:
    """The expression as a tree; raises ValueError for what Java refuses, or what has no equal."""
    if len(pattern) > LONGEST_PATTERN:
        raise ValueError(f"it has {len(pattern)} characters, and at most {LONGEST_PATTERN} are read")
    try:
        return _Reader(pattern).whole()
    except RecursionError:
        raise ValueError("it has too many groups in one another") from None


def translated(pattern: str) -> str:
    """The same expression for `regex`, version 1; raises ValueError as `read`."""
    try:
        return _written(read(pattern)[0])
    except RecursionError:
        raise ValueError("it has too many groups in one another") from None


def nodes(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    match node:
        case Sequence(parts) | Choice(parts):
            below = parts
        case Group(_, body) | Repeat(body):
            below = (body,)
        case _:
            below = ()
    for part in below:
        yield from nodes(part)


def _written(node: Node) -> str:
    match node:
        case Sequence(parts):
            return "".join(map(_written, parts))
        case Choice(parts):
            return "|".join(map(_written, parts))
        case Group(head, body):
            return f"{head}{_written(body)})"
        case Repeat(body, quantifier):
            return _each_once(_written(body), quantifier) + quantifier
        case _:
            return node.text


def _tokens(pattern: str) -> Iterator[str]:
    r"""Characters; escapes as backslash and character; and characters between \Q and \E, each behind a `=`."""
    at = 0
    while at < len(pattern):
        if pattern.startswith(r"\Q", at):
            end = pattern.find(r"\E", at + 2)
            end = len(pattern) if end < 0 else end
            yield from (f"={character}" for character in pattern[at + 2 : end])
            at = end + 2
        else:
            length = 2 if pattern[at] == "\\" else 1
            yield pattern[at : at + length]
            at += length


def _code(character: str) -> str:
    """A character that means itself, also in a set."""
    plain = character.isascii() and character.isalnum()
    return character if plain else f"\\U{ord(character):08x}"


def _each_once(element: str, repeats: str) -> str:
    """Before a possessive quantifier Java takes each repetition of a group at its first match."""
    return f"(?:(?>{element}))" if repeats[1:].endswith("+") and element[0] == "(" else element


class _Reader:
    """Reads a pattern from its first to its last token."""

    def __init__(self, pattern: str) -> None:
        self._tokens = list(_tokens(pattern))
        self._at = 0
        self._flags: frozenset[str] = frozenset()
        self._groups = 0
        self._names: set[str] = set()

    def whole(self) -> Element:
        element = self._alternatives()
        if self._peek():
            raise ValueError("Unmatched closing ')'")
        return element

    def _peek(self) -> str:
        """The next token; "" at the end. In comments mode, spaces and comments are none."""
        while "x" in self._flags and self._at < len(self._tokens):
            if self._tokens[self._at] == "#":
                while self._at < len(self._tokens) and self._tokens[self._at] not in ("\n", "\r"):
                    self._at += 1
            elif self._tokens[self._at] in " \t\n\v\f\r":
                self._at += 1
            else:
                break
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _accepts(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._at += 1
        return True

    def _until(self, end: str, error: str) -> str:
        """The text before the token `end`, which is read, too."""
        try:
            end_at = self._tokens.index(end, self._at)
        except ValueError:
            raise ValueError(error) from None
        text = "".join(self._tokens[self._at : end_at])
        self._at = end_at + 1
        return text

    def _alternatives(self) -> Element:
        parts, size = [], 0
        while True:
            part, more = self._sequence()
            parts.append(part)
            size += more
            if not self._accepts("|"):
                return (parts[0] if len(parts) == 1 else Choice(tuple(parts))), size

    def _sequence(self) -> Element:
        parts: list[Node] = []
        size = 0
        while self._peek() not in ("", "|", ")"):
            start = self._at
            element = self._element()
            if element is None:
                continue
            part, least = self._repeated(element[0], start)
            parts.append(part)
            size += element[1] * max(least, 1)
            if size > MOST_ELEMENTS:
                raise ValueError(f"it has more than {MOST_ELEMENTS} elements, if what it repeats is written out")
        return (parts[0] if len(parts) == 1 else Sequence(tuple(parts))), size

    def _source(self, start: int) -> str:
        """The tokens from `start` on, as the user wrote them."""
        return "".join(
            token[1:] if len(token) == 2 and token[0] == "=" else token for token in self._tokens[start : self._at]
        )

    def _repeated(self, node: Node, start: int) -> Element:
        """The node with the quantifier that follows it, if one does, and its least number."""
        token = self._peek()
        most: int | None
        if token in ("*", "+", "?"):
            text, least, most = self._next(), int(token == "+"), 1 if token == "?" else None
        elif token == "{":
            text, least, most = self._counted()
        else:
            return node, 1
        text += self._next() if self._peek() in ("?", "+") else ""
        return Repeat(node, text, least, most, self._source(start)), least

    def _counted(self) -> tuple[str, int, int | None]:
        self._next()
        least, comma, most = self._until("}", "Unclosed counted closure").partition(",")
        numbers = [text for text in (least, most) if text]
        if not least or not all(text.isascii() and text.isdigit() and len(text) < 10 for text in numbers):
            raise ValueError("Illegal repetition")
        if most and int(most) < int(least):
            raise ValueError("Illegal repetition range")
        upper = (int(most) if most else None) if comma else int(least)
        return f"{{{least}{comma}{most}}}", int(least), upper

    def _element(self) -> Element | None:
        """What a quantifier can follow; None for flags."""
        token = self._next()
        if token == "(":
            return self._group()
        if token in ("*", "+", "?"):
            raise ValueError(f"Dangling meta character '{token}'")
        if token == "{":
            raise ValueError("Illegal repetition")
        if token[0] == "\\":
            return self._escape(token), 1
        if token in ("^", "$"):
            return Anchor(self._begin() if token == "^" else self._end()), 1
        special = {"[": self._set, ".": self._dot}.get(token)
        return Characters(special() if special else self._literal(token[-1])), 1

    # Groups and flags.

    def _group(self) -> Element | None:
        flags = self._flags
        head = self._head()
        if head is None:
            return None
        body, size = self._alternatives()
        if not self._accepts(")"):
            raise ValueError("Unclosed group")
        self._flags = flags
        return Group(head, body), size + 1

    def _head(self) -> str | None:
        """How a group begins; None for flags until the end of the group around them."""
        if not self._accepts("?"):
            self._groups += 1
            return "("
        token = self._next()
        if token in (":", "=", "!", ">"):
            return f"(?{token}"
        if token != "<":
            self._at -= 1
            return self._inline_flags()
        if self._peek() in ("=", "!"):
            return f"(?<{self._next()}"
        name = self._name()
        if name in self._names:
            raise ValueError(f"Named capturing group <{name}> is already defined")
        self._names.add(name)
        self._groups += 1
        return f"(?P<{name}>"

    def _name(self) -> str:
        name = self._until(">", "named capturing group is missing trailing '>'")
        if not (name.isascii() and name.isalnum() and name[0].isalpha()):
            raise ValueError(f"{name!r} cannot be the name of a group")
        return name

    def _inline_flags(self) -> str | None:
        flags, on = set(self._flags), True
        while (token := self._next()) not in (":", ")"):
            if token == "-" and on:
                on = False
            elif token == "U":
                raise ValueError("the flag U is not supported")
            elif token not in _FLAGS:
                raise ValueError("Unknown inline modifier")
            else:
                (flags.add if on else flags.discard)(token)
        self._flags = frozenset(flags)
        return "(?:" if token == ":" else None

    # Single characters and places.

    def _literal(self, character: str) -> str:
        if "i" not in self._flags or not character.isalpha():
            return _code(character)
        if character.isascii():
            return f"[{character.lower()}{character.upper()}]"
        return f"(?i-f:{_code(character)})" if "u" in self._flags else _code(character)

    def _dot(self) -> str:
        if "s" in self._flags:
            return ANY
        return r"[^\x0a]" if "d" in self._flags else f"[^{_BREAKS}]"

    def _begin(self) -> str:
        if "m" not in self._flags:
            return BEGIN
        if "d" in self._flags:
            return r"(?:\A|(?<=\x0a)(?!\Z))"
        return rf"(?:\A|{_NOT_INSIDE_BREAK}(?<=[{_BREAKS}])(?!\Z))"

    def _end(self) -> str:
        if "m" not in self._flags:
            return self._last()
        if "d" in self._flags:
            return r"(?=\x0a|\Z)"
        return rf"(?:{_NOT_INSIDE_BREAK}(?=[{_BREAKS}]|\Z))"

    def _last(self) -> str:
        """The end of the text, or the place before the line's end there."""
        if "d" in self._flags:
            return r"(?=\x0a?\Z)"
        return LAST

    def _escape(self, token: str) -> Node:
        letter, start = token[1:], self._at - 1
        if letter == "k" or (letter.isdigit() and letter != "0"):
            text = self._named_reference() if letter == "k" else self._reference(letter)
            return Special(text, self._source(start))
        if letter == "X":
            return Special(r"\X", token)
        if letter == "R":
            return Group("(?:", Choice((Sequence((Characters(r"\x0d"), Characters(r"\x0a"))), _ANY_BREAK)))
        if letter in ("b", "B") and self._peek() == "{":
            raise ValueError("\\b{g} is not supported")
        places = {"A": BEGIN, "z": END, "G": r"\G", "b": BOUNDARY, "B": NO_BOUNDARY, "Z": self._last()}
        if letter in places:
            return Anchor(places[letter])
        characters = self._in_set(token)
        return Characters(f"[{characters}]" if len(characters) > 1 else self._literal(characters))

    def _named_reference(self) -> str:
        if not self._accepts("<"):
            raise ValueError("\\k is not followed by '<' for named capturing group")
        name = self._name()
        if name not in self._names:
            raise ValueError(f"named capturing group <{name}> does not exist")
        return self._same(f"(?P={name})")

    def _reference(self, digits: str) -> str:
        """A group's number has as many digits as there can be; what no group has never matches."""
        while (token := self._peek()).isdigit() and int(digits + token) <= self._groups:
            digits += self._next()
        return self._same(rf"\g<{digits}>") if int(digits) <= self._groups else "(?!)"

    def _same(self, reference: str) -> str:
        return f"(?i-f:{reference})" if "i" in self._flags else reference

    # Sets of characters.

    def _set(self) -> str:
        """A set behind its first bracket: `&&` joins unions, of which each is what stands side by side."""
        negative = "^" if self._accepts("^") else ""
        unions: list[list[str]] = [[]]
        while not (self._peek() == "]" and any(unions)):
            if not self._peek():
                raise ValueError("Unclosed character class")
            if self._is_intersection():
                self._at += 2
                unions.append([])
            else:
                unions[-1].append(self._member())
        self._next()
        texts = ["".join(union) for union in unions if union]
        text = texts[0] if len(texts) == 1 else "&&".join(f"[{text}]" for text in texts)
        whole = f"[{negative}{text}]"
        return f"(?i-f:{whole})" if {"i", "u"} <= self._flags else whole

    def _is_intersection(self) -> bool:
        return self._peek() == "&" and self._tokens[self._at + 1 : self._at + 2] == ["&"]

    def _member(self) -> str:
        """A set, or characters from one to another."""
        token = self._next()
        if token == "[":
            return self._set()
        first = self._in_set(token) if token[0] == "\\" else token[-1]
        if len(first) > 1:
            return first
        last = first
        if self._peek() == "-" and self._tokens[self._at + 1 : self._at + 2] not in ([], ["]"], ["["]):
            self._next()
            token = self._next()
            last = self._in_set(token) if token[0] == "\\" else token[-1]
            if len(last) > 1 or last < first:
                raise ValueError("Illegal character range")
        return self._range(first, last)

    def _range(self, first: str, last: str) -> str:
        ranges = [(ord(first), ord(last))]
        if "i" in self._flags:
            for (low, high), distance in zip(_LETTERS, (32, -32), strict=True):
                inside = max(low, ranges[0][0]), min(high, ranges[0][1])
                if inside[0] <= inside[1]:
                    ranges.append((inside[0] + distance, inside[1] + distance))
        return "".join(_code(chr(low)) + (f"-{_code(chr(high))}" if high > low else "") for low, high in ranges)

    def _in_set(self, token: str) -> str:
        """A character, or what stands in a set for several: these texts have more than one character."""
        letter = token[1:]
        if letter in ("p", "P"):
            return self._property(negative=letter == "P")
        if letter.lower() in _SETS:
            return _SETS[letter] if letter.islower() else f"[^{_SETS[letter.lower()]}]"
        if letter in ("x", "u", "0", "c", "N"):
            return self._number(letter)
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if not letter or (letter.isascii() and letter.isalnum()):
            raise ValueError(f"Illegal/unsupported escape sequence {token}")
        return letter

    def _property(self, *, negative: bool) -> str:
        token = self._next()
        name = self._until("}", "Unclosed character family") if token == "{" else token
        characters = self._family(name.removeprefix("Is") if name.removeprefix("Is") in _CATEGORIES else name)
        return f"[^{characters}]" if negative else f"[{characters}]"

    def _family(self, name: str) -> str:
        key, is_pair, value = name.partition("=")
        if is_pair and key.lower() in ("gc", "general_category") and value in _CATEGORIES:
            name = value
        if "i" in self._flags and name in ("Lower", "Upper"):
            return _POSIX["Alpha"]
        if "i" in self._flags and name in ("Lu", "Ll", "Lt"):
            return r"\p{Lu}\p{Ll}\p{Lt}"
        if name in _POSIX:
            return _POSIX[name]
        if name in _CATEGORIES:
            return rf"\p{{{name}}}"
        if name.startswith("Is") and name[2:].upper() in _BINARY:
            return _BINARY[name[2:].upper()]
        script = value if is_pair and key.lower() in ("sc", "script") else name[2:] if name.startswith("Is") else ""
        if not (script.isascii() and script.isidentifier()):
            raise ValueError(f"\\p{{{name}}} is not supported")
        return rf"\p{{Script={script}}}"

    def _number(self, letter: str) -> str:
        """The character of a number, a control key, or a name."""
        if letter == "c":
            token = self._next()
            if not token:
                raise ValueError("Illegal control escape sequence")
            return chr(ord(token[-1]) ^ 64)
        if letter == "N":
            return self._named_character()
        if letter == "0":
            return self._octal()
        if letter == "x" and self._accepts("{"):
            return self._hexadecimal(self._until("}", "Unclosed hexadecimal escape sequence"))
        first = self._digits(4 if letter == "u" else 2)
        if letter == "u" and 0xD800 <= int(first, 16) < 0xDC00 and self._tokens[self._at : self._at + 1] == ["\\u"]:
            self._at += 1
            pair = bytes.fromhex(first + self._digits(4))
            return pair.decode("utf-16-be")
        return self._hexadecimal(first)

    def _named_character(self) -> str:
        if not self._accepts("{"):
            raise ValueError("Illegal character name escape sequence")
        name = self._until("}", "Unclosed character name escape sequence")
        try:
            return unicodedata.lookup(name)
        except KeyError:
            raise ValueError(f"Unknown character name [{name}]") from None

    def _digits(self, count: int) -> str:
        text = "".join(self._tokens[self._at : self._at + count])
        self._at += count
        if len(text) != count:
            raise ValueError("Illegal hexadecimal escape sequence")
        return text

    def _hexadecimal(self, digits: str) -> str:
        number = int(digits, 16) if digits.isalnum() and len(digits) < 9 else -1
        if not 0 <= number <= 0x10FFFF or 0xD800 <= number < 0xE000:
            raise ValueError(f"Hexadecimal codepoint is not a character: {digits[:20]}")
        return chr(number)

    def _octal(self) -> str:
        digits = ""
        while len(digits) < 3 and self._peek() in tuple("01234567") and int(digits + self._peek(), 8) < 256:
            digits += self._next()
        if not digits:
            raise ValueError("Illegal octal escape sequence")
        return chr(int(digits, 8))
