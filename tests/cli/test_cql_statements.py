"""CQL text becomes statements, whatever is in its strings, names and comments."""

from __future__ import annotations

import pytest
from growth import assert_linear
from hypothesis import given, strategies as st

from penstock.cli.cql_statements import last, split

TEXT = st.text("ab;'$\"-/* \n", max_size=8)


def quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


WORDS = st.one_of(
    st.sampled_from(["SELECT", "x", "1.5", "=", "(", ")", ","]),
    TEXT.map(quoted),
    TEXT.map(lambda text: '"' + text.replace('"', '""') + '"'),
    TEXT.filter(lambda text: "$" not in text).map(lambda text: f"$${text}$$"),
)
STATEMENTS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
COMMENTS = st.one_of(
    st.just(""),
    TEXT.filter(lambda text: "\n" not in text).map(lambda text: f"--{text}\n"),
    TEXT.filter(lambda text: "*/" not in f"{text}*").map(lambda text: f"/* {text} */"),
)


@given(st.lists(st.tuples(COMMENTS, STATEMENTS), max_size=5), COMMENTS)
def test_statements_end_at_their_own_semicolon(given: list[tuple[str, str]], end: str) -> None:
    text = "".join(f"{comment} {statement};" for comment, statement in given) + end
    statements, rest = split(text)
    assert statements == [statement for _, statement in given]
    assert last(rest) == ""


@given(STATEMENTS)
def test_the_last_statement_needs_no_semicolon(statement: str) -> None:
    statements, rest = split(f"USE a; {statement}")
    assert (statements, last(rest)) == (["USE a"], statement)


@pytest.mark.parametrize("rest", ["INSERT INTO t VALUES ('a;", 'SELECT "a;', "SELECT $$ a; b;", "/* a; b;"])
def test_an_open_string_waits_for_its_end(rest: str) -> None:
    assert split(f"USE a;{rest}") == (["USE a"], rest)


def test_a_batch_is_one_statement() -> None:
    batch = "BEGIN UNLOGGED BATCH INSERT INTO a (b) VALUES (1); DELETE FROM a WHERE b = 2; APPLY BATCH"
    assert split(f"{batch}; USE a;") == ([batch, "USE a"], "")
    assert split("begin batch insert into a (b) values (1);") == ([], "begin batch insert into a (b) values (1);")


@given(st.text("ab;'\"$-/* \n", max_size=40))
def test_any_text_is_taken(text: str) -> None:
    statements, rest = split(text)
    assert text.endswith(rest) and all(statements)
    assert isinstance(last(rest), str)


@pytest.mark.parametrize(
    "piece",
    ["'", '"', "$$", "/*", "/* ", "--", "\n", ";", "a;", "x ", "BEGIN ", "APPLY BATCH;", "//", "/*/", "$", "''"],
)
def test_a_script_costs_as_much_as_it_is_long(piece: str) -> None:
    for start in ("", "BEGIN BATCH ", "'"):

        def script(size: int, start: str = start) -> str:
            return start + piece * (size // len(piece))

        assert_linear(lambda size: split(script(size)), 40_000)
        assert_linear(lambda size: last(script(size)), 40_000)
