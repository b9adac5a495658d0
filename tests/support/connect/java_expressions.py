"""Expressions in the syntax of java.util.regex, drawn from pieces that stand for all of it, and texts for them."""

from __future__ import annotations

from hypothesis import strategies as st

PIECES = (
    r"a b A K s 1 - . \. \d \w \s \D \W [ab] [^ab] [a-c] [a-z&&[^b]] [^a-z&&[^b]] [a[b-c]] [a-c&&ab] \p{Lower} "
    r"\p{Alpha} \P{Upper} \p{L} \p{Lu} \p{IsAlphabetic} \x41 \u0062 \0101 [\w&&[^\d]] [-a] [a-] []a] [^]a] \Qa.b\E "
    r"[\Q]\Ea] \cA \x{62} ^ $ \b \B \z \Z \A (?i) (?s) (?m) (?x) (?-i) # & [a&b] [a&&] \1 \2 \11 [A-c] \p{Punct} \h "
    r"\v \R"
)
ATOMS = PIECES.split()
PLACES = {"^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z", r"\R"}
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "??", "*+", "++", "{2}", "{1,2}", "{0,1}?", "{1,}"])
NAMES = ["", "a", "b", "ab", "ba", "aab", "abc", "A", "aB", "Kk", "a.b", "a-b", "a1", "1a", "a.b.c", "shop.a", "ABab"]


@st.composite
def expressions(draw: st.DrawFn, depth: int = 2) -> str:
    """Expressions of Java, of which a part is none."""
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        if depth and draw(st.integers(0, 3)) == 0:
            head = draw(st.sampled_from(["(", "(", "(?:", "(?=", "(?!", "(?>", "(?<n>", "(?i:", "(?s-i:"]))
            choices = draw(st.lists(expressions(depth - 1), min_size=1, max_size=2))
            parts.append(f"{head}{'|'.join(choices)}){draw(REPEATS)}")
        else:
            atom = draw(st.sampled_from(ATOMS))
            parts.append(atom if atom in PLACES or atom.startswith("(?") else atom + draw(REPEATS))
    return "".join(parts)
