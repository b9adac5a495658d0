"""Counts the files on each data path: `python scripts/ways.py` prints the table of docs/architecture.md.

It follows calls from the entry points of a path, as far as the source shows what is called: imported names, and methods
and properties of `self`, of attributes, parameters and variables with a declared class, of what collections of them
hold, of base classes, and of objects created in place. A file counts if its code runs on the path. So a class counts
where it is created or a method of it is called, and not where an annotation names it. Errors and constants are not
followed, and neither are tables of functions by name and methods of protocols: entry points name one that is in use,
and what Spark calls for each batch of rows. Planning which rows are a batch is not on the path of a row.

What every path uses is not counted (FOUNDATION): nobody opens it to read one path. A path ends where another begins.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
MOST = 30
"""The most files of a path: an engineer reads them in one go."""
FOUNDATION = (
    # The first layers of docs/architecture.md: errors, durations, checks of arguments, compiled loops, waits.
    *("penstock.errors:", "penstock.extras:", "penstock.durations:", "penstock.lazy:", "penstock.border."),
    *("penstock.native.", "penstock.native:", "penstock.process."),
    # A session is there already.
    "penstock.spark_runtime.session:",
)
WIRE, DATABASE = ("penstock.wire.", "penstock.wire:"), ("penstock.database.", "penstock.database:")
KAFKA = ("penstock.kafka.",)
# The entry points of each path, and the packages where it ends, because these have their own paths.
WAYS = {
    "1. CQL table → change log → `cdc.read` → `cdc.events` → `kafka.sink`": (
        (
            "penstock.cdc.cdc_source:CdcStreamReader.read",
            "penstock.codec.debezium:events",
            "penstock.kafka.kafka_sink:KafkaSink.stream",
        ),
        (*WIRE, *DATABASE),
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
            "penstock.ingest.app:App",
            "penstock.ingest.app:App.begin",
            "penstock.ingest.app:App.take",
            "penstock.ingest.http_connection:HttpConnection.data_received",
            "penstock.ingest.kafka_store:KafkaStore.put",
        ),
        WIRE,
    ),
    "4. topic → `kafka.read` → `window.tumbling` → any sink": (
        (
            "penstock.kafka.kafka_read:read",
            "penstock.kafka.kafka_source:TopicStreamReader.read",
            "penstock.window.windows:tumbling",
            "penstock.keyed_state.buckets:Bucket.init",
            "penstock.keyed_state.buckets:Bucket.handleInputRows",
            "penstock.keyed_state.buckets:Bucket.handleExpiredTimer",
            "penstock.window.windows:Windows.before",
            "penstock.window.windows:Windows.step",
            "penstock.window.windows:Panes.partial",
            "penstock.window.windows:Panes.merge",
        ),
        WIRE,
    ),
    "5. event → `cql.match` → `segment.match` → members' table → delivery topic": (
        (
            "penstock.cql.matching.id_match:match",
            "penstock.cql.matching.id_match:Match.__call__",
            "penstock.segment.segment_match:match",
            "penstock.segment.processor:Segments.init",
            "penstock.segment.processor:Segments.handleInputRows",
            "penstock.segment.processor:Segments.handleExpiredTimer",
            "penstock.segment.member_tables.member_sink:SegmentSink.save",
            "penstock.segment.member_tables.delivery_sync:sync",
        ),
        (*WIRE, *DATABASE),
    ),
    "6. frame → `cql.sink` → table": (("penstock.cql.cql_sink:CqlSink.save",), ()),
    "6b. CQL table → change log → `cdc.read` → `replicate.sink` → another table": (
        ("penstock.cdc.cdc_source:CdcStreamReader.read", "penstock.replicate.replicate_sink:ReplicateSink.save"),
        DATABASE,
    ),
    "7. record of a topic → sink connector → row of a table": (
        (
            "penstock.connect.sinks.record_sink:RecordSink.save",
            "penstock.connect.sinks.task:SinkWriter.__call__",
            "penstock.connect.records.deserializers:JsonBytes.__call__",
            "penstock.connect.transforms.fields:replace_field",
            "penstock.connect.sinks.jdbc.destination:JdbcDestination.writer",
            "penstock.connect.sinks.jdbc.writer:RowWriter.write",
        ),
        (*WIRE, *DATABASE, *KAFKA),
    ),
    "8. task of a connector → another worker of its group": (
        (
            "penstock.connect.group.group_work:SharedWork._take_part",
            "penstock.connect.group.group_work:SharedWork._work",
            "penstock.connect.group.group_work:SharedWork.said",
            "penstock.connect.group.group_work:SharedWork.divide",
            "penstock.connect.group.group_work:SharedWork.assigned",
            "penstock.connect.group.group_work:SharedWork.lost",
            "penstock.connect.group.group_work:Positions.progress",
        ),
        # What a task does is way 1, 7 or 9.
        (*WIRE, *DATABASE, *KAFKA, "penstock.run.", "penstock.connect.source.", "penstock.connect.sinks."),
    ),
    "9. signal → ad-hoc snapshot": (
        (
            "penstock.connect.source.signal_watch:SignalWatch._run",
            "penstock.connect.source.signal_channels:SignalTopic.new",
            "penstock.cdc.cdc_source:CdcStreamReader._signalled",
            "penstock.cdc.cdc_source:CdcStreamReader._chunk",
            "penstock.cdc.planner:Snapshot.chunk",
            "penstock.cdc.partition_read:read_range",
        ),
        (*WIRE, *DATABASE, *KAFKA),
    ),
    "10. Spark's progress → meter → `/status` → the console's page": (
        (
            "penstock.run.supervise:PipelineRun._report",
            "penstock.run.supervise:Watched.news",
            "penstock.watch.meters:PipelineMeter.progress",
            "penstock.watch.status:status",
            "penstock.watch.query_metrics:QueryMetrics.collect",
            "penstock.watch.metrics_server:served",
            "penstock.console.reading.run_polling:Run.ask",
            "penstock.console.watched_systems:WatchedSystems.overview",
            "penstock.console.event_stream:OverviewEvents.look",
        ),
        (*WIRE, *DATABASE, *KAFKA),
    ),
}


@dataclass
class Scope:
    """A module: its functions and classes by name, and the origins of imported names."""

    name: str
    bodies: dict[str, ast.AST] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)


Function = ast.FunctionDef | ast.AsyncFunctionDef
CREATED = ("__init__", "__post_init__")
"""What Python calls when an object is created."""
USED = ("__call__", "__enter__", "__exit__", "__iter__", "__next__")
"""What Python may call of an object that is passed on."""
OF_COLLECTIONS = ("get", "items", "pop", "popleft", "setdefault", "values")
OVER_COLLECTIONS = ("enumerate", "iter", "list", "next", "reversed", "sorted", "zip")
"""Methods and functions that give what a collection holds; a variable of a collection has the class of that."""


def file_of(module: str) -> Path:
    path = SOURCES.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def scope(module: str) -> Scope | None:
    if not file_of(module).exists():
        return None
    names = Scope(module)
    tree = ast.parse(file_of(module).read_text())
    for statement in tree.body:
        if isinstance(statement, Function | ast.ClassDef):
            names.bodies[statement.name] = statement
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "penstock":
            for alias in node.names:
                names.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def scope_of(name: str) -> Scope:
    """The module of `module:function` or `module:Class.method`."""
    module = scope(name.partition(":")[0])
    assert module
    return module


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
            return owner if attr in OF_COLLECTIONS and method(owner, attr) is None else member(owner, attr)
        case ast.Subscript(value=value):
            return resolve(module, value, types)
        case ast.Call(func=ast.Name(id="super")):
            return next(iter(bases(types.get("self"))), None)
        case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in OVER_COLLECTIONS:
            return resolve(module, first, types)
        case ast.Call(func=func):
            callee = resolve(module, func, types)
            return callee if is_class(callee) else returned(callee)
    return None


def split(dotted: str) -> str | None:
    """`package.module.name` as `package.module:name`; a module stays unchanged."""
    if scope(dotted) is not None:
        return dotted
    module, _, name = dotted.rpartition(".")
    names = scope(module)
    if names is None:
        return None
    if name in names.bodies:
        return f"{module}:{name}"
    return split(names.imports[name]) if name in names.imports else None


@cache
def body(name: str | None) -> ast.AST | None:
    """The definition of `module:function`, `module:Class` or `module:Class.method`."""
    if not name or ":" not in name:
        return None
    module, _, path = name.partition(":")
    names = scope(module)
    first, _, method_name = path.partition(".")
    node = names.bodies.get(first) if names else None
    if method_name and isinstance(node, ast.ClassDef):
        return next((each for each in node.body if getattr(each, "name", None) == method_name), None)
    return node


def is_class(name: str | None) -> bool:
    return isinstance(body(name), ast.ClassDef)


def bases(owner: str | None) -> Iterator[str]:
    """The classes of Penstock that a class is made from."""
    node = body(owner)
    if owner and isinstance(node, ast.ClassDef):
        for expression in node.bases:
            base = resolve(scope_of(owner), expression, {})
            if base and is_class(base):
                yield base


def method(owner: str, attr: str) -> str | None:
    """The method of a class or of its bases."""
    if body(f"{owner}.{attr}") is not None:
        return f"{owner}.{attr}"
    return next((name for base in bases(owner) if (name := method(base, attr))), None)


def member(owner: str, attr: str) -> str | None:
    """A method, or the class of an attribute or a property."""
    if not is_class(owner):
        return None
    if name := method(owner, attr):
        return returned(name) if is_property(name) else name
    return attributes(owner).get(f"self.{attr}")


def is_property(name: str) -> bool:
    marks = {mark.id for mark in getattr(body(name), "decorator_list", []) if isinstance(mark, ast.Name)}
    return bool(marks & {"property", "cached_property"})


def returned(name: str | None) -> str | None:
    """The class in a function's return annotation."""
    node = body(name)
    if not isinstance(node, Function) or node.returns is None or name is None:
        return None
    return annotated(scope_of(name), node.returns)


def annotated(module: Scope, annotation: ast.AST) -> str | None:
    """The first class of Penstock in an annotation, for example `X` in `X | None`, in `list[X]` and in "X".

    Of `dict[K, V]` and `Callable[[K], V]` it is V.
    """
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple):
        annotation = ast.Tuple([*reversed(annotation.slice.elts)], ast.Load())
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name) and is_class(name := resolve(module, node, {})):
            return name
    return None


@cache
def attributes(owner: str) -> dict[str, str]:
    """The classes of a class's attributes, from its fields and from assignments in its methods and its bases."""
    module, node = scope_of(owner), body(owner)
    assert isinstance(node, ast.ClassDef)
    types: dict[str, str] = {}
    for base in bases(owner):
        types |= attributes(base)
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if name := annotated(module, statement.annotation):
                types[f"self.{statement.target.id}"] = name
        elif isinstance(statement, Function):
            for target, name in assigned(module, statement, parameters(module, statement)):
                if target.startswith("self."):
                    types.setdefault(target, name)
    return types


def parameters(module: Scope, node: Function) -> dict[str, str]:
    arguments = (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs)
    annotations = {each.arg: each.annotation for each in arguments if each.annotation is not None}
    classes = {name: annotated(module, annotation) for name, annotation in annotations.items()}
    return {name: class_name for name, class_name in classes.items() if class_name}


def assigned(module: Scope, node: Function, types: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The variables and attributes that a function binds to objects of a known class, which later ones may use."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.AnnAssign) and (declared := annotated(module, inner.annotation)):
            yield ast.unparse(inner.target), declared
        for target, value in bound(inner):
            name = resolve(module, value, types)
            if name and is_class(name):
                yield ast.unparse(target), name


def bound(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """What is bound to what by a statement; a loop over a mapping's items binds the second of a pair."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from zip(target.elts, value.elts, strict=False)
                else:
                    yield target, value
        case ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield target.elts[-1] if isinstance(target, ast.Tuple) else target, value


@cache
def called(name: str) -> list[str]:
    """The functions that a function or a method calls or passes on, and the methods that a class's creation calls."""
    module, node = scope_of(name), body(name)
    if isinstance(node, ast.ClassDef):
        return [*methods(name, (*CREATED, *USED))]
    if not isinstance(node, Function):
        return []
    types = parameters(module, node)
    owner = name.rpartition(".")[0] if "." in name.partition(":")[2] else ""
    if owner:
        types |= attributes(owner) | {"self": owner, "cls": owner}
    for variable, class_name in assigned(module, node, types):
        types[variable] = class_name
    names = (
        reference
        for inner in executed(node)
        if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Load)
        for reference in references(module, inner, types)
    )
    return [*dict.fromkeys(names)]


def references(module: Scope, expression: ast.Name | ast.Attribute, types: dict[str, str]) -> Iterator[str]:
    """What an expression refers to, and the property that it reads."""
    if isinstance(expression, ast.Attribute):
        owner = resolve(module, expression.value, types)
        if owner and is_class(owner) and (name := method(owner, expression.attr)):
            yield name
            return
    name = resolve(module, expression, types)
    if name is None or ":" not in name:
        return
    if ast.unparse(expression) in types and ast.unparse(expression) != "cls":
        # The object exists already.
        yield from methods(name, USED)
    elif not (isinstance(expression, ast.Attribute) and expression.attr in OF_COLLECTIONS):
        yield name


def methods(owner: str, names: tuple[str, ...]) -> Iterator[str]:
    yield from (defined for name in names if (defined := method(owner, name)))


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function that run, unlike its annotations and decorators."""
    for name, children in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in children if isinstance(children, list) else [children]:
                if isinstance(child, ast.AST):
                    yield child
                    yield from executed(child)


def is_error(name: str) -> bool:
    node = body(name)
    return isinstance(node, ast.ClassDef) and any(
        isinstance(base, ast.Name) and base.id.endswith(("Error", "Exception")) for base in node.bases
    )


def passed(entries: tuple[str, ...], doors: tuple[str, ...]) -> dict[str, str]:
    """The modules of all functions that are reached without entering one of the packages `doors`, in this order.

    Beside each is the function that reached it first.
    """
    for entry in entries:
        if body(entry) is None:
            raise SystemExit(f"{entry} does not exist any more. Next: correct WAYS in {__file__}")
    modules = {entry.partition(":")[0]: "" for entry in entries}
    todo, seen = list(entries), set(entries)
    while todo:
        caller = todo.pop(0)
        for name in called(caller):
            if name not in seen and not is_error(name) and not name.startswith((*doors, *FOUNDATION)):
                seen.add(name)
                todo.append(name)
                modules.setdefault(name.partition(":")[0], caller)
    return modules


def short(name: str) -> str:
    return name.removeprefix("penstock.").replace(".", "/", name.partition(":")[0].count(".") - 1)


def main(options: list[str]) -> int:
    print("| way | files |\n|---|---|")
    for way, (entries, doors) in WAYS.items():
        modules = passed(entries, doors)
        print(f"| {way} | {len(modules)} |")
        for module, caller in modules.items() if "--files" in options else ():
            lines = len(file_of(module).read_text().splitlines())
            print(f"|   `{short(module)}.py` | {lines} lines{f', from `{short(caller)}`' if caller else ''} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
