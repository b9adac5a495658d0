"""A public constant has one home: where two modules have the same name for the same value, one imports it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
WAITS = {"IDLE", "LOOK", "PATIENCE", "PAUSE", "PAUSES", "PERIOD", "SLACK"}
"""Names of durations, which each module chooses for what it waits for."""
ALLOWED = {
    "AT_ONCE": (3, "each limits work of its own: questions about groups, about topics, and accepted connections"),
    "AUTO": (2, "an argument of the command line, and of the demo's program, which the command starts"),
    "DEEPEST": (2, "levels of JSON that are masked, and levels of CQL's types"),
    "DEFAULT": (2, "Kafka Connect's group of created topics, and where a broker's setting comes from"),
    "ERRORS": (2, "errors that a meter keeps, and errors that a page shows"),
    "EXAMPLES": (2, "two demos, each with a comparison of its own"),
    "FRAME": (2, "codec.decode_columns loads PySpark, and the console shows records without it"),
    "GONE": (2, "serve.rest_errors loads Starlette, and penstock ingest starts without it"),
    "HEAD": (4, "bounds of requests and of answers; and files of two kinds begin with a length and a checksum"),
    "INTEGERS": (2, "the transforms of sources have the types of columns, those of sinks the types of records"),
    "KEPT": (2, "results of expressions, and errors of deliveries"),
    "LARGEST": (3, "files of connectors, of secrets, and of rules"),
    "LARGEST_ANSWER": (2, "answers about topics, and about the members of a group"),
    "LONGEST": (4, "names of folders, and durations; identities, and headers with passwords"),
    "MICROS": (2, "microseconds of a second"),
    "MOST": (5, "bytes of files, of bodies and of forks; checkpoints, and parameters of a pixel"),
    "MOST_DEPTH": (2, "Avro's schemas, and JSON's values"),
    "MOST_DIGITS": (2, "Parquet's decimals, and Spark's"),
    "NEVER": (2, "a time of a rule's plan; the demo's model finds its results without the plan"),
    "OTHER": (2, "reasons that are not counted by name, and paths without a route"),
    "PREFIX": (2, "codec.problem loads PySpark, and the console shows dead letters without it"),
    "READ_ROWS": (2, "staged rows, and event times"),
    "ROUNDS": (2, "identities and members are erased apart"),
    "ROWS": (2, "rows of CQL, and records of a topic"),
    "SECOND": (2, "microseconds of a second"),
    "SHOWN": (2, "characters of a header, and of a message"),
    "SIDES": (2, "the key and the value of a record"),
    "UNREADABLE": (2, "a class of reasons, and a column of the source of Kafka"),
    "VARINT": (2, "64 bits in groups of seven, by Avro's specification and by Protobuf's"),
    "WORD": (2, "eight bytes, in two layouts of memory"),
}
"""Names with the number of modules that have one of their own, and why they do."""


def constants(module: Path) -> Iterator[tuple[str, ast.expr]]:
    """The names in capitals that a module binds to a value of its own: not to a name, a type, or a small number."""
    for node in ast.parse(module.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if name.isupper() and not name.startswith("_") and name not in WAITS and not trivial(value):
            yield name, value


def trivial(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=int() | float() as number):
            return abs(number) <= 2
        case ast.Constant(value=empty):
            return not empty
        case ast.Name() | ast.Attribute():
            return True
        case ast.Call(func=ast.Name(id="TypeVar" | "ParamSpec" | "get_args" | "object")):
            return True
        case ast.List(elts=[]) | ast.Tuple(elts=[]) | ast.Dict(keys=[]):
            return True
    return False


def test_a_constant_has_one_home() -> None:
    homes: dict[tuple[str, str], list[str]] = {}
    for module in sorted(SOURCE.rglob("*.py")):
        for name, value in constants(module):
            homes.setdefault((name, ast.dump(value)), []).append(str(module.relative_to(SOURCE)))
    twice = [(name, module) for (name, _), modules in homes.items() if len(modules) > 1 for module in modules]
    counts = Counter(name for name, _ in twice)
    allowed = {name: count for name, (count, _) in ALLOWED.items()}
    assert [(name, module) for name, module in twice if counts[name] > allowed.get(name, 0)] == []
    assert allowed == counts, "it has one home now, or fewer modules: correct ALLOWED"
