"""Counts the files on each data path: `python scripts/ways.py` prints the table of docs/architecture.md.

It follows calls from the entry points of a path, as far as the source shows what is called: imported names, methods of
`self`, of attributes and parameters with a declared class, and of objects created in place. Errors and constants are
not followed. A file counts if its code runs on the path.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
WIRE, DATABASE = "penstock.wire.", "penstock.database."
# The entry points of each path, and the packages where it ends, because these have their own paths.
WAYS = {
    "1. CQL table → change log → `cdc.read` → `cdc.events` → `kafka.sink`": (
        (
            "penstock.cdc.cdc_source:CdcStreamReader.read",
            "penstock.codec.debezium:events",
            "penstock.kafka.kafka_sink:KafkaSink.stream",
        ),
        (WIRE, DATABASE),
    ),
    "2. record → `Producer.send`, `send_table` → record batch → socket": (
        (
            "penstock.wire.producer.producer:Producer.send",
            "penstock.wire.producer.producer:Producer.send_table",
            "penstock.wire.producer.sender:Sender.start",
        ),
        (),
    ),
    "3. HTTP event → `penstock ingest` → Kafka": (
        (
            "penstock.ingest.app:App.begin",
            "penstock.ingest.app:App.take",
            "penstock.ingest.http_connection:HttpConnection.data_received",
            "penstock.ingest.kafka_store:KafkaStore.put",
        ),
        (WIRE,),
    ),
    "4. topic → `kafka.read` → `window.tumbling` → any sink": (
        (
            "penstock.kafka.kafka_read:read",
            "penstock.kafka.kafka_source:TopicStreamReader.read",
            "penstock.window.windows:tumbling",
        ),
        (WIRE,),
    ),
    "5. event → `cql.match` → `segment.match` → members' table → delivery topic": (
        (
            "penstock.cql.matching.id_match:match",
            "penstock.segment.segment_match:match",
            "penstock.segment.member_tables.member_sink:SegmentSink.save",
            "penstock.segment.member_tables.delivery_sync:sync",
        ),
        (WIRE, DATABASE),
    ),
    "6. frame → `cql.sink` → table": (("penstock.cql.cql_sink:CqlSink.save",), ()),
    "7. CQL table → change log → `cdc.read` → `replicate.sink` → another table": (
        ("penstock.cdc.cdc_source:CdcStreamReader.read", "penstock.replicate.replicate_sink:ReplicateSink.save"),
        (DATABASE,),
    ),
}


@dataclass
class Scope:
    """A module: its functions and classes by name, and the origins of imported names."""

    name: str
    bodies: dict[str, ast.AST] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)


@cache
def scope(module: str) -> Scope | None:
    path = SOURCES.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        return None
    found = Scope(module)
    tree = ast.parse(file.read_text())
    for defined in tree.body:
        if isinstance(defined, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.bodies[defined.name] = defined
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "penstock":
            for alias in node.names:
                found.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def resolve(module: Scope, expression: ast.AST, types: dict[str, str]) -> str | None:
    """The dotted name of the function, class or method that an expression refers to, or None."""
    match expression:
        case ast.Name(id=name):
            if name in types:
                return types[name]
            if name in module.bodies:
                return f"{module.name}:{name}"
            return split(module.imports[name]) if name in module.imports else None
        case ast.Attribute(value=value, attr=attr):
            if isinstance(value, ast.Name) and value.id == "self" and f"self.{attr}" in types:
                return types[f"self.{attr}"]
            owner = resolve(module, value, types)
            if owner is None:
                return None
            if ":" not in owner:
                return split(f"{owner}.{attr}")
            return member(owner, attr)
        case ast.Call(func=func):
            made = resolve(module, func, types)
            return made if made and isinstance(body(made), ast.ClassDef) else returned(made)
    return None


def split(dotted: str) -> str | None:
    """`package.module.name` as `package.module:name`; a module stays unchanged."""
    if scope(dotted) is not None:
        return dotted
    module, _, name = dotted.rpartition(".")
    found = scope(module)
    if found is None:
        return None
    if name in found.bodies:
        return f"{module}:{name}"
    return split(found.imports[name]) if name in found.imports else None


def body(name: str | None) -> ast.AST | None:
    """The definition of `module:function`, `module:Class` or `module:Class.method`."""
    if not name or ":" not in name:
        return None
    module, _, path = name.partition(":")
    found = scope(module)
    first, _, method = path.partition(".")
    node = found.bodies.get(first) if found else None
    if method and isinstance(node, ast.ClassDef):
        return next((each for each in node.body if getattr(each, "name", None) == method), None)
    return node


def member(owner: str, attr: str) -> str | None:
    """A method or a typed attribute of a class."""
    node = body(owner)
    if not isinstance(node, ast.ClassDef):
        return None
    if body(f"{owner}.{attr}") is not None:
        method = body(f"{owner}.{attr}")
        names = {each.id for each in getattr(method, "decorator_list", []) if isinstance(each, ast.Name)}
        return returned(f"{owner}.{attr}") if names & {"property", "cached_property"} else f"{owner}.{attr}"
    return attributes(owner).get(f"self.{attr}")


def returned(name: str | None) -> str | None:
    """The class in a function's return annotation."""
    node = body(name)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.returns is None or name is None:
        return None
    module = scope(name.partition(":")[0])
    assert module
    return annotated(module, node.returns)


def annotated(module: Scope, annotation: ast.AST) -> str | None:
    """The first class of Penstock in an annotation, for example `X` in `X | None`, in `list[X]` and in "X"."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            found = resolve(module, node, {})
            if isinstance(body(found), ast.ClassDef):
                return found
    return None


@cache
def attributes(owner: str) -> dict[str, str]:
    """The classes of a class's attributes, from its fields and from assignments in its methods."""
    module, node = scope(owner.partition(":")[0]), body(owner)
    assert module and isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            made = annotated(module, each.annotation)
            found |= {f"self.{each.target.id}": made} if made else {}
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            types = parameters(module, each)
            for inner in ast.walk(each):
                if isinstance(inner, ast.Assign):
                    for target, value in pairs(inner):
                        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                            made = resolve(module, value, types)
                            if made and isinstance(body(made), ast.ClassDef):
                                found.setdefault(f"self.{target.attr}", made)
    return found


def pairs(node: ast.Assign) -> Iterator[tuple[ast.AST, ast.AST]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def parameters(module: Scope, node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    found = {}
    for each in (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs):
        if each.annotation is not None and (made := annotated(module, each.annotation)):
            found[each.arg] = made
    return found


def called(name: str) -> Iterator[str]:
    """The functions that a function or a method calls or passes on."""
    module, node = scope(name.partition(":")[0]), body(name)
    assert module
    if isinstance(node, ast.ClassDef):
        for method in ("__init__", "__post_init__", "__enter__", "__call__"):
            if body(f"{name}.{method}") is not None:
                yield f"{name}.{method}"
        return
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    types = parameters(module, node)
    owner = name.rpartition(".")[0] if "." in name.partition(":")[2] else ""
    if owner:
        types |= attributes(owner) | {"self": owner, "cls": owner}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign):
            for target, value in pairs(inner):
                made = resolve(module, value, types)
                if isinstance(target, ast.Name) and made and isinstance(body(made), ast.ClassDef):
                    types[target.id] = made
    for inner in ast.walk(node):
        if isinstance(inner, ast.Raise | ast.ExceptHandler):
            continue
        # `self` has the type of its class, but does not create an object.
        if isinstance(inner, ast.Name) and inner.id == "self":
            continue
        if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Load):
            found = resolve(module, inner, types)
            if found and ":" in found:
                yield found


def is_error(name: str) -> bool:
    node = body(name)
    return isinstance(node, ast.ClassDef) and any(
        isinstance(base, ast.Name) and base.id.endswith(("Error", "Exception")) for base in node.bases
    )


def passed(entries: tuple[str, ...], doors: tuple[str, ...]) -> set[str]:
    """The modules of all functions that are reached without entering one of the packages `doors`."""
    for entry in entries:
        if body(entry) is None:
            raise SystemExit(f"{entry} does not exist any more. Next: correct WAYS in {__file__}")
    todo, done = list(entries), set(entries)
    while todo:
        for name in called(todo.pop()):
            if name not in done and not is_error(name) and not name.startswith(doors):
                done.add(name)
                todo.append(name)
    return {name.partition(":")[0] for name in done}


def main(options: list[str]) -> int:
    print("| way | files |\n|---|---|")
    for way, (entries, doors) in WAYS.items():
        modules = sorted(passed(entries, doors))
        print(f"| {way} | {len(modules)} |")
        if "--files" in options:
            for module in modules:
                print(f"|   `{module.replace('.', '/')}.py` | |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
