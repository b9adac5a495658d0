"""Tables of every kind, and statements that change them, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable

TABLES = {
    "elements": "CREATE TABLE {ks}.elements (pk int, ck int, m map<text, int>, e set<int>, sm map<int, int> static, "
    "u address, f frozen<list<int>>, PRIMARY KEY (pk, ck))",
    "rows": "CREATE TABLE {ks}.rows (pk int, ck int, s int static, v int, w text, PRIMARY KEY (pk, ck))",
    "lists": "CREATE TABLE {ks}.lists (pk int, ck int, l list<int>, v int, PRIMARY KEY (pk, ck))",
    "ranges": "CREATE TABLE {ks}.ranges (pk int, a int, b int, c int, v int, PRIMARY KEY (pk, a, b, c)) "
    "WITH CLUSTERING ORDER BY (a DESC, b ASC, c DESC)",
    "single": "CREATE TABLE {ks}.single (pk int PRIMARY KEY, v int, m map<int, int>)",
}
Draw = random.Random


def of_rows(draw: Draw) -> str:
    row = f"pk = {draw.randrange(5)} AND ck = {draw.randrange(4)}"
    partition = row.split(" AND ")[0]
    value = draw.choice([f"v = {draw.randrange(9)}", f"w = '{draw.randrange(9)}'", "v = null", "v = 1, w = 'x'"])
    return draw.choice(
        [
            f"UPDATE {{t}} {{using}} SET {value} WHERE {row}",
            f"UPDATE {{t}} {{using}} SET s = {draw.choice(['1', '2', 'null'])} WHERE {partition}",
            f"INSERT INTO {{t}} (pk, ck, v, s) VALUES ({draw.randrange(5)}, {draw.randrange(4)}, 5, 6) {{using}}",
            f"INSERT INTO {{t}} (pk, ck) VALUES ({draw.randrange(5)}, {draw.randrange(4)}) {{using}}",
            f"DELETE v, w FROM {{t}} {{at}} WHERE {row}",
            f"DELETE FROM {{t}} {{at}} WHERE {row}",
            f"DELETE FROM {{t}} {{at}} WHERE {partition} AND ck > {draw.randrange(4)}",
            f"DELETE FROM {{t}} {{at}} WHERE {partition} AND ck >= 1 AND ck < {draw.randrange(2, 4)}",
            *([f"DELETE FROM {{t}} {{at}} WHERE {partition}"] if draw.randrange(5) == 0 else []),
        ]
    )


def of_elements(draw: Draw) -> str:
    row = f"pk = {draw.randrange(4)} AND ck = {draw.randrange(3)}"
    key, number = draw.choice("abc"), draw.randrange(9)
    value = draw.choice(
        [
            *(f"m = {{'{key}': {number}}}", f"m = m + {{'{key}': {number}}}", f"m['{key}'] = {number}"),
            *(
                f"m = m - {{'{key}'}}",
                "m = null",
                f"e = e + {{{number}}}",
                f"e = e - {{{number}}}",
                f"e = {{{number}}}",
            ),
            *(f"u = {{street: '{key}'}}", f"u.zip = {number}", "u.street = null", "u = null", f"f = [{number}]"),
            f"m = m + {{'{key}': {number}}}, e = e - {{{number}}}, u.zip = {number}",
        ]
    )
    return draw.choice(
        [
            *[f"UPDATE {{t}} {{using}} SET {value} WHERE {row}"] * 4,
            f"INSERT INTO {{t}} (pk, ck, m, u) VALUES ({draw.randrange(4)}, 1, {{'{key}': 1}}, {{zip: 3}}) {{using}}",
            f"UPDATE {{t}} {{using}} SET sm = sm + {{{number}: 1}} WHERE pk = {draw.randrange(4)}",
            f"UPDATE {{t}} {{using}} SET sm = {{{number}: 2}} WHERE pk = {draw.randrange(4)}",
            f"DELETE m, u FROM {{t}} {{at}} WHERE {row}",
            f"DELETE FROM {{t}} {{at}} WHERE {row}",
        ]
    )


def of_lists(draw: Draw) -> str:
    row, number = f"pk = {draw.randrange(8)} AND ck = {draw.randrange(3)}", draw.randrange(9)
    value = draw.choice(
        [f"l = l + [{number}]", f"l = [{number}] + l", f"l = [{number}, 1]", "l = null", f"v = {number}"]
    )
    return draw.choice(
        [*[f"UPDATE {{t}} {{using}} SET {value} WHERE {row}"] * 6, f"DELETE FROM {{t}} {{at}} WHERE {row}"]
    )


def of_ranges(draw: Draw) -> str:
    pk, a, b, c = (draw.randrange(3) for _ in range(4))
    low, high = sorted(draw.sample(range(4), 2))
    bounds = draw.choice(
        [
            *(f"a > {low}", f"a >= {low} AND a < {high}", f"a = {a}", f"a = {a} AND b > {low}", f"a = {a} AND b = {b}"),
            *(f"a = {a} AND b = {b} AND c <= {c}", f"(a, b) > ({low}, {b}) AND (a, b) <= ({high}, {b})"),
            *(f"(a, b, c) < ({high}, {b}, {c})", f"(a, b, c) >= ({low}, {b}, {c}) AND a < {high}"),
        ]
    )
    insert = f"INSERT INTO {{t}} (pk, a, b, c, v) VALUES ({pk}, {a}, {b}, {c}, {low}) {{using}}"
    return draw.choice([insert, insert, insert, f"DELETE FROM {{t}} {{at}} WHERE pk = {pk} AND {bounds}"])


def of_single(draw: Draw) -> str:
    pk, number = draw.randrange(6), draw.randrange(9)
    return draw.choice(
        [
            f"INSERT INTO {{t}} (pk, v) VALUES ({pk}, {number}) {{using}}",
            f"UPDATE {{t}} {{using}} SET m = m + {{{number}: 1}} WHERE pk = {pk}",
            f"UPDATE {{t}} {{using}} SET v = null, m = {{{number}: 2}} WHERE pk = {pk}",
            f"DELETE FROM {{t}} {{at}} WHERE pk = {pk}",
        ]
    )


DRAWN: dict[str, Callable[[Draw], str]] = {
    "rows": of_rows,
    "elements": of_elements,
    "lists": of_lists,
    "ranges": of_ranges,
    "single": of_single,
}


def of_time(draw: Draw, statement: str, at: str) -> str:
    """The statement at a time, "USING TIMESTAMP ..."; some writes get a time to live."""
    expires = draw.randrange(5) == 0
    using = at + (f" AND TTL {draw.randrange(8000, 9000)}" if expires else "")
    return statement.replace("{using}", using).replace("{at}", at)
