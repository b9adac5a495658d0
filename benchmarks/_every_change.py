"""A workload that has every CQL type in every kind of change, in tables that ScyllaDB's connector can read too.

Left out is what that connector loses or does not take (docs/events.md lists it): an UPDATE or DELETE of a missing row,
static rows, nested key columns. What it drops, deleted ranges and partitions, is in.
"""

from __future__ import annotations

from collections.abc import Iterator

KEYSPACE = "every_change"
CDC = "cdc = {'enabled': true, 'preimage': true, 'postimage': true}"
TYPES = (
    f"CREATE TYPE {KEYSPACE}.place (street text, zip int, tags frozen<set<text>>)",
    f"CREATE TYPE {KEYSPACE}.outer_place (at frozen<place>, note text)",
)

# Three values of each: an ordinary one, one at an end of the range, one at the other end.
SCALARS = {
    "ascii": ("'plain'", "''", "'~!@#$%^&*()'"),
    "bigint": ("5", "-9223372036854775808", "9223372036854775807"),
    "blob": ("0xcafe00", "0x", "0xfffefd"),
    "boolean": ("true", "false", "true"),
    "date": ("'2024-02-29'", "'1900-01-01'", "'9999-12-31'"),
    "decimal": ("12345.670", "-0.00000000001", "1E+10"),
    "double": ("1.5", "1.0E-300", "-123456789.125"),
    "duration": ("1d12h30m", "-1mo2d3ns", "1y2mo3w4d5h6m7s8ms9us10ns"),
    "float": ("0.1", "-3.4028235E38", "16777216"),
    "inet": ("'127.0.0.1'", "'2001:db8::1'", "'::'"),
    "int": ("7", "-2147483648", "2147483647"),
    "smallint": ("7", "-32768", "32767"),
    "text": ("'hello'", "'é 漢字 😀 \"quoted\" \\ / </script> \u2028 \u0007\t\n'", "''"),
    "time": ("'08:12:54.123456789'", "'00:00:00'", "'23:59:59.999999999'"),
    "timestamp": ("'2024-02-29T12:00:00.123Z'", "'0001-01-01T00:00:00.000Z'", "'1969-12-31T23:59:59.999Z'"),
    "timeuuid": (
        "50554d6e-29bb-11e5-b345-feff819cdc9f",
        "00000000-0000-1000-8000-000000000000",
        "ffffffff-ffff-1fff-bfff-ffffffffffff",
    ),
    "tinyint": ("7", "-128", "127"),
    "uuid": (
        "123e4567-e89b-12d3-a456-426614174000",
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    ),
    "varchar": ("'v'", "'\u00fc'", "''"),
    "varint": ("5", "-123456789012345678901234567890", "340282366920938463463374607431768211456"),
}
FLOATS = ("NaN", "Infinity", "-Infinity", "0.0", "-0.0", "1E7", "1.2345678E-5", "100", "3.0E-5")
NESTED = {
    "frozen<list<int>>": ("[1, 2]", "[]", "[3]"),
    "frozen<set<text>>": ("{'b', 'a'}", "{}", "{''}"),
    "frozen<map<int, text>>": ("{2: 'b', 1: 'a'}", "{}", "{-1: ''}"),
    "frozen<map<uuid, frozen<list<double>>>>": (
        "{123e4567-e89b-12d3-a456-426614174000: [1.5]}",
        "{}",
        "{00000000-0000-0000-0000-000000000000: []}",
    ),
    "frozen<tuple<int, text>>": ("(1, 'a')", "(null, 'b')", "(null, null)"),
    "frozen<tuple<frozen<list<int>>, frozen<map<int, int>>>>": ("([1], {1: 2})", "(null, null)", "([], {})"),
    "frozen<place>": ("{street: 's', zip: 1, tags: {'x'}}", "{street: 't'}", "{zip: 0, tags: {}}"),
    "frozen<outer_place>": ("{at: {street: 's'}, note: 'n'}", "{note: 'm'}", "{at: {zip: 1}}"),
    "frozen<list<frozen<tuple<int, date>>>>": ("[(1, '2024-02-29')]", "[(2, null)]", "[]"),
    "frozen<map<frozen<tuple<int, text>>, frozen<place>>>": ("{(1, 'a'): {zip: 9}}", "{}", "{(2, 'b'): {street: 'q'}}"),
    "frozen<set<frozen<list<timestamp>>>>": ("{['2024-02-29T12:00:00Z']}", "{}", "{[]}"),
}
# Type, and changes of a row that holds the first value.
GROWING = {
    "list<text>": ("['a', 'b']", "{c} = {c} + ['c', 'd']", "{c} = {c} - ['a']", "{c}[0] = 'z'", "{c} = ['new']"),
    "set<int>": ("{1, 2}", "{c} = {c} + {3, 0}", "{c} = {c} - {1}", "{c} = {7}", "{c} = {}"),
    "map<text, int>": ("{'a': 1}", "{c} = {c} + {'b': 2}", "{c}['a'] = 5", "{c} = {c} - {'b'}", "{c} = {'z': 0}"),
    "place": (
        "{street: 's', zip: 1, tags: {'t'}}",
        "{c}.zip = 2",
        "{c}.street = null",
        "{c} = {street: 'n'}",
        "{c} = null",
    ),
}


def tables() -> dict[str, list[str]]:
    """The statements of each table by its name, the one that creates it first."""
    return {
        "scalars": list(_values("scalars", SCALARS)),
        "nested": list(_values("nested", NESTED)),
        "growing": list(_growing()),
        "floats": list(_floats()),
        "keys": list(_keys()),
        "no_clustering": list(_no_clustering()),
        "ranges": list(_ranges()),
        "names": list(_names()),
        "overwrites": list(_overwrites()),
    }


def _values(name: str, values: dict[str, tuple[str, str, str]]) -> Iterator[str]:
    """Inserts, overwrites, nulls, deletes of columns and of rows, with every type."""
    columns = [f"v{i}" for i in range(len(values))]
    table = f"{KEYSPACE}.{name}"
    defined = ", ".join(f"{column} {kind}" for column, kind in zip(columns, values, strict=True))
    yield f"CREATE TABLE {table} (k int, c int, {defined}, PRIMARY KEY (k, c)) WITH {CDC}"
    for i in range(3):
        row = ", ".join(each[i] for each in values.values())
        yield f"INSERT INTO {table} (k, c, {', '.join(columns)}) VALUES (1, {i}, {row})"
    yield f"INSERT INTO {table} (k, c) VALUES (1, 3)"
    yield f"INSERT INTO {table} (k, c, {', '.join(columns)}) VALUES (1, 0, {', '.join('null' for _ in columns)})"
    for column, each in zip(columns, values.values(), strict=True):
        yield f"UPDATE {table} SET {column} = {each[2]} WHERE k = 1 AND c = 0"
        yield f"UPDATE {table} SET {column} = null WHERE k = 1 AND c = 1"
        yield f"DELETE {column} FROM {table} WHERE k = 1 AND c = 2"
    yield f"DELETE FROM {table} WHERE k = 1 AND c = 0"


def _growing() -> Iterator[str]:
    table = f"{KEYSPACE}.growing"
    columns = [f"v{i}" for i in range(len(GROWING))]
    defined = ", ".join(f"{column} {kind}" for column, kind in zip(columns, GROWING, strict=True))
    yield f"CREATE TABLE {table} (k int, c int, {defined}, PRIMARY KEY (k, c)) WITH {CDC}"
    for c in range(2):
        row = ", ".join(each[0] for each in GROWING.values())
        yield f"INSERT INTO {table} (k, c, {', '.join(columns)}) VALUES (1, {c}, {row})"
    for column, changes in zip(columns, GROWING.values(), strict=True):
        for change in changes[1:]:
            yield f"UPDATE {table} SET {change.replace('{c}', column)} WHERE k = 1 AND c = 0"
        yield f"DELETE {column} FROM {table} WHERE k = 1 AND c = 1"
    yield f"DELETE FROM {table} WHERE k = 1 AND c = 1"


def _floats() -> Iterator[str]:
    table = f"{KEYSPACE}.floats"
    yield f"CREATE TABLE {table} (k int PRIMARY KEY, f float, d double, l frozen<list<float>>) WITH {CDC}"
    for k, value in enumerate(FLOATS):
        yield f"INSERT INTO {table} (k, f, d, l) VALUES ({k}, {value}, {value}, [{value}])"


def _keys() -> Iterator[str]:
    """Every type as a key column, with the columns of a key not in the order of their names."""
    kinds = [kind for kind in SCALARS if kind != "duration"]
    table, names = f"{KEYSPACE}.keys", [f"z{len(kinds) - i:02}" for i in range(len(kinds))]
    defined = ", ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
    primary = f"(({names[0]}, {names[1]}), {', '.join(names[2:])})"
    yield f"CREATE TABLE {table} ({defined}, v int, PRIMARY KEY {primary}) WITH {CDC}"
    for i in (0, 2):
        values = [SCALARS[kind][i] for kind in kinds]
        yield f"INSERT INTO {table} ({', '.join(names)}, v) VALUES ({', '.join(values)}, {i})"
        where = " AND ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
        yield f"UPDATE {table} SET v = 9 WHERE {where}"
        yield f"DELETE FROM {table} WHERE {where}"


def _no_clustering() -> Iterator[str]:
    """Conditions, TTLs, batches, and deletes of partitions that are rows."""
    flat = f"{KEYSPACE}.no_clustering"
    yield f"CREATE TABLE {flat} (k int PRIMARY KEY, v int, t text) WITH {CDC}"
    yield f"INSERT INTO {flat} (k, v) VALUES (1, 1) IF NOT EXISTS"
    yield f"UPDATE {flat} SET v = 2 WHERE k = 1 IF v = 1"
    yield f"INSERT INTO {flat} (k, v, t) VALUES (2, 2, 'short') USING TTL 3600"
    yield f"BEGIN BATCH INSERT INTO {flat} (k, v) VALUES (3, 3); UPDATE {flat} SET t = 'b' WHERE k = 1; APPLY BATCH"
    yield f"BEGIN UNLOGGED BATCH INSERT INTO {flat} (k, v) VALUES (4, 4); INSERT INTO {flat} (k, v) VALUES (5, 5);" + (
        " APPLY BATCH"
    )
    yield f"DELETE FROM {flat} WHERE k = 1"
    yield f"DELETE FROM {flat} WHERE k = 3 IF EXISTS"
    yield f"INSERT INTO {flat} (k, v) VALUES (1, 8)"


def _ranges() -> Iterator[str]:
    """Deletes of ranges and of partitions with several rows, between changes of rows."""
    table = f"{KEYSPACE}.ranges"
    yield f"CREATE TABLE {table} (k int, c int, d int, v int, PRIMARY KEY (k, c, d)) WITH {CDC}"
    for c in range(4):
        yield f"INSERT INTO {table} (k, c, d, v) VALUES (1, {c}, 0, {c})"
    yield f"DELETE FROM {table} WHERE k = 1 AND c = 1"
    yield f"DELETE FROM {table} WHERE k = 1 AND c >= 2 AND c < 3"
    yield f"UPDATE {table} SET v = 30 WHERE k = 1 AND c = 3 AND d = 0"
    yield f"DELETE FROM {table} WHERE k = 1"
    yield f"INSERT INTO {table} (k, c, d, v) VALUES (1, 0, 0, 7)"
    yield f"INSERT INTO {table} (k, c, d, v) VALUES (1, 0, 1, 8)"
    yield f"BEGIN UNLOGGED BATCH UPDATE {table} SET v = 70 WHERE k = 1 AND c = 0 AND d = 0;" + (
        f" UPDATE {table} SET v = 80 WHERE k = 1 AND c = 0 AND d = 1; APPLY BATCH"
    )


def _names() -> Iterator[str]:
    """Names that Avro does not take, and the key's in any order."""
    table = f"{KEYSPACE}.names"
    yield (
        f'CREATE TABLE {table} ("Mixed" int, "with space" int, "b-c" text, "1st" int, a int, "value" int,'
        f' PRIMARY KEY (("with space", "Mixed"), "b-c", a)) WITH {CDC}'
    )
    yield f'INSERT INTO {table} ("Mixed", "with space", "b-c", a, "1st", "value") VALUES (1, 2, \'x\', 3, 4, 5)'
    yield f'UPDATE {table} SET "1st" = 0 WHERE "Mixed" = 1 AND "with space" = 2 AND "b-c" = \'x\' AND a = 3'
    yield f'DELETE FROM {table} WHERE "Mixed" = 1 AND "with space" = 2 AND "b-c" = \'x\' AND a = 3'


def _overwrites() -> Iterator[str]:
    """Statements that write a part of a row that is there, and of one that was there."""
    table = f"{KEYSPACE}.overwrites"
    yield f"CREATE TABLE {table} (k text, c int, a int, b text, s set<int>, PRIMARY KEY (k, c)) WITH {CDC}"
    for k in ("'plain'", "'😀 é'"):
        yield f"INSERT INTO {table} (k, c, a, b, s) VALUES ({k}, 1, 1, 'b', {{1}})"
        yield f"INSERT INTO {table} (k, c, a) VALUES ({k}, 1, 2)"
        yield f"INSERT INTO {table} (k, c, b) VALUES ({k}, 1, null)"
        yield f"INSERT INTO {table} (k, c, s) VALUES ({k}, 1, {{2, 3}})"
        yield f"INSERT INTO {table} (k, c) VALUES ({k}, 1)"
        yield f"UPDATE {table} SET b = 'c', a = null WHERE k = {k} AND c = 1"
        yield f"UPDATE {table} USING TTL 3600 SET a = 4 WHERE k = {k} AND c = 1"
        yield f"INSERT INTO {table} (k, c, a, b) VALUES ({k}, 1, 5, 'd') USING TTL 3600"
        yield f"BEGIN BATCH INSERT INTO {table} (k, c, a) VALUES ({k}, 1, 6);" + (
            f" UPDATE {table} SET b = 'e' WHERE k = {k} AND c = 1;"
            f" INSERT INTO {table} (k, c, a) VALUES ({k}, 2, 6); APPLY BATCH"
        )
        yield f"DELETE FROM {table} WHERE k = {k} AND c = 1"
        yield f"INSERT INTO {table} (k, c, b) VALUES ({k}, 1, 'f')"
        yield f"DELETE FROM {table} WHERE k = {k} AND c = 1"
