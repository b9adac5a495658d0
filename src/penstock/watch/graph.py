"""The graph of a pipeline: what its queries read, keep and write, as data, as text and as a Mermaid diagram.

Sources and sinks come from Spark's plan and from `Sink.target`, as in `checkpoint.identity`. Lookups, tables that every
worker holds and states with names are in Python functions, which a plan has only in pickled form. Their classes are
in `FUNCTIONS`, and functions of other names are not unpickled. Loads no Spark: `penstock ingest` has a graph, too.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from penstock.checkpoint.identity import (
    ADDRESSES,
    CDC,
    NAMED,
    SinkTarget,
    SourceIdentity,
    source_of,
    streams,
    target_of,
)
from penstock.spark_runtime.logical_plan import analyzed, each, nodes

if TYPE_CHECKING:
    from penstock.query.query import Query

TABLE, HTTP, TOPIC, QUERY, STATE, SINK = "table", "http", "topic", "query", "state", "sink"
"""Kinds of nodes; `sink` is what is neither a topic nor a table of the database."""
OF_ROWS = "topics of each row"
MEMBERS = ("members", "counts")
"""The tables of a keyspace that `segment.sink` writes."""


@dataclass(frozen=True)
class Node:
    """`kind` is one of those above, `system` "kafka", "cql", "postgres", "files", "delta", "penstock" or Spark's
    name of a source; `address` is None where there is none, and never has a password."""

    id: str
    kind: str
    name: str
    system: str
    address: str | None = None

    def __str__(self) -> str:
        what = self.kind if self.kind not in (SINK, TABLE) or self.system == "cql" else self.system
        return f"{what} {self.name}".rstrip() + (f" at {self.address}" if self.address else "")


@dataclass(frozen=True)
class Edge:
    """Rows go from the node `source` to the node `target`; both are ids."""

    source: str
    target: str


@dataclass(frozen=True)
class Graph:
    """Each node and each edge once, in the order of the queries."""

    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()

    @classmethod
    def of(cls, nodes: Iterable[Node], edges: Iterable[tuple[Node, Node]]) -> Graph:
        """The graph without repetitions; the first node of an id stays, and those of several clusters get ids apart."""
        all_nodes = list(nodes)
        ids = ids_apart((node.id, node.address) for node in all_nodes)
        known: dict[str, Node] = {}
        for node in all_nodes:
            known.setdefault(ids[node.id, node.address], node)
        links = dict.fromkeys(
            Edge(ids[source.id, source.address], ids[target.id, target.address]) for source, target in edges
        )
        return cls(tuple(replace(node, id=id) for id, node in known.items()), tuple(links))

    def to_dict(self) -> dict[str, Any]:
        """The graph as JSON has it."""
        return {"nodes": [asdict(node) for node in self.nodes], "edges": [asdict(edge) for edge in self.edges]}

    def text(self) -> str:
        """A paragraph for each query: its inputs, states and outputs, and the queries that go on from there."""
        queries = [node for node in self.nodes if node.kind == QUERY]
        return "\n\n".join("\n".join(self._paragraph(query)) for query in queries)

    def mermaid(self) -> str:
        """A Mermaid flowchart; names cannot end the labels that they are in."""
        ids = {node.id: f"n{place}" for place, node in enumerate(self.nodes)}
        boxes = [f"  {ids[node.id]}{_box(node)}" for node in self.nodes]
        lines = [f"  {ids[edge.source]} --> {ids[edge.target]}" for edge in self.edges]
        return "\n".join(["flowchart LR", *boxes, *lines])

    def _paragraph(self, query: Node) -> Iterator[str]:
        yield f"query {query.name}"
        for source in self._from(query, before=True):
            written = [node.name for node in self._from(source, before=True) if node.kind == QUERY]
            yield f"  reads   {source}" + (f", from query {', '.join(written)}" if written else "")
        for target in self._from(query, before=False):
            if target.kind == STATE:
                yield f"  keeps   {target}"
                continue
            readers = [node.name for node in self._from(target, before=False) if node.kind == QUERY]
            yield f"  writes  {target}" + (f", to query {', '.join(readers)}" if readers else "")

    def _from(self, node: Node, *, before: bool) -> list[Node]:
        """The nodes right before or after a node."""
        near = {(edge.source if before else edge.target) for edge in self.edges if self._at(edge, before) == node.id}
        return [other for other in self.nodes if other.id in near]

    @staticmethod
    def _at(edge: Edge, before: bool) -> str:
        return edge.target if before else edge.source


BOXES = {TABLE: ("[(", ")]"), HTTP: ("{{", "}}"), TOPIC: ("([", "])"), QUERY: ("[", "]"), STATE: ("[[", "]]")}
"""Mermaid's shapes; a sink has the slanted one."""


def _box(node: Node) -> str:
    begin, end = BOXES.get(node.kind, ("[/", "/]"))
    return f'{begin}"{_label(str(node))}"{end}'


def _label(text: str) -> str:
    """The text with all that Mermaid, or HTML in it, could read as syntax as numbers of characters."""
    return re.sub(r"[^\w .,:/-]", lambda match: f"#{ord(match[0])};", text)


# Nodes of what queries read and write.


def topic(name: str, address: str | None = None) -> Node:
    """The node of a Kafka topic, or of topics of which only a pattern is known."""
    return Node(f"topic:{name}", TOPIC, name, "kafka", address or None)


def table(name: str, address: str | None = None) -> Node:
    """The node of a table of the CQL database, "keyspace.table"."""
    return Node(f"table:{name}", TABLE, name, "cql", address or None)


Place = tuple[str, str | None]
"""The id of a node, and the address of its cluster; None if that is not known."""


def ids_apart(places: Iterable[Place]) -> dict[Place, str]:
    """The ids of nodes by their place: a topic or table of one name on several clusters is several nodes.

    Each of these has its address in its id, as it may have already. A node without an address may be any of them.
    """
    names = {place: _without(*place) for place in places}
    addresses: dict[str, set[str]] = defaultdict(set)
    for (_, address), name in names.items():
        if address:
            addresses[name].add(address)
    return {
        place: f"{name}@{place[1]}" if place[1] and len(addresses[name]) > 1 else name for place, name in names.items()
    }


def _without(id: str, address: str | None) -> str:
    return id.removesuffix(f"@{address}") if address else id


def graph_of(pipeline: str, queries: Mapping[str, Query]) -> Graph:
    """The graph of a pipeline's queries, by the names of their checkpoints ("" for a single query)."""
    graph_nodes: list[Node] = []
    edges: list[tuple[Node, Node]] = []
    for name, query in queries.items():
        full = f"{pipeline}.{name}" if name else pipeline
        node = Node(f"query:{full}", QUERY, full, "penstock")
        inputs = [*_all(source_nodes(query)), *lookup_nodes(query)]
        outputs = [*state_nodes(full, query), *_all(sink_nodes(query))]
        graph_nodes += [*inputs, node, *outputs]
        edges += [*((source, node) for source in inputs), *((node, sink) for sink in outputs)]
    return Graph.of(graph_nodes, edges)


def _all(groups: Sequence[Sequence[Node]]) -> list[Node]:
    return [node for group in groups for node in group]


def source_nodes(query: Query) -> list[list[Node]]:
    """What each source of a query reads, in the order of its plan: mostly one node, several for a list of topics."""
    return _apart(_sources(query), _sinks(query))


def sink_nodes(query: Query) -> list[list[Node]]:
    """Where each sink of a query writes, in the order of the sinks: mostly one node."""
    return _apart(_sinks(query), _sources(query))


def _apart(groups: Sequence[Sequence[Node]], others: Sequence[Sequence[Node]]) -> list[list[Node]]:
    """Nodes of one id get ids of their own if they are, or one of the other side is, on another cluster."""
    ids = ids_apart((node.id, node.address) for node in [*_all(groups), *_all(others)])
    return [[replace(node, id=ids[node.id, node.address]) for node in group] for group in groups]


def _sources(query: Query) -> list[list[Node]]:
    return [_of_source(format, options) for format, options in streams(query.frame)]


def _of_source(format: str, options: Mapping[str, str]) -> list[Node]:
    source = source_of(format, options)
    lower_case_options = {name.lower(): value for name, value in options.items()}
    address = next((lower_case_options[name] for name in ADDRESSES if name in lower_case_options), None)
    if format == CDC:
        return [table(source.of["table"], address)]
    if source.kind == "kafka":
        return [topic(name, address) for name in _topics(source)]
    if "path" in source.of:
        return [_files(source.of["path"], TABLE)]
    name = " ".join(source.of[key] for key in NAMED if key in source.of)
    return [Node(f"source:{format} {name}".rstrip(), TABLE, name, format)]


def _files(path: str, kind: str) -> Node:
    """The node of files, local ones by their plain path, so that a reader's and a writer's are the same."""
    local = re.sub("^file:(//)?(?=/)", "", path)
    return Node(f"files:{local}", kind, local, "files")


def _topics(source: SourceIdentity) -> list[str]:
    if "topic" in source.of:
        return source.of["topic"].split(",")
    if "partitions" in source.of:
        return sorted(json.loads(source.of["partitions"]))
    return [source.of.get("pattern", OF_ROWS)]


def _sinks(query: Query) -> list[list[Node]]:
    return [_of_sink(query, target_of(sink), _address(sink)) for sink in query.sinks]


def _of_sink(query: Query, target: SinkTarget, address: str | None) -> list[Node]:
    if target.kind == "kafka":
        return [topic(name, address) for name in _written_topics(query, target.of)]
    if target.kind == "cql":
        return [table(name, address) for name in target.of.split(", ")]
    if target.kind == "segments":
        return [table(f"{target.of}.{name}", address) for name in MEMBERS]
    if target.kind == "files":
        return [_files(target.of, SINK)]
    id = f"postgres:{target.of}" if target.kind == "postgres" else f"sink:{target}"
    return [Node(id, SINK, target.of, target.kind, address)]


def _written_topics(query: Query, target: str) -> list[str]:
    """The topics of a sink of Kafka: its own, those of the tables that are read, or that of a constant column."""
    if target.startswith("topic "):
        return [target.removeprefix("topic ")]
    if target.startswith("topics ") and target.endswith(".*"):
        # The same names as those of `cdc.events`.
        from penstock.wire.topic_names import topic_name

        prefix = target.removeprefix("topics ").removesuffix("*")
        tables = [node.name for node in _all(_sources(query)) if node.system == "cql"]
        return [topic_name(prefix + name) for name in tables] or [f"{prefix}*"]
    plan = analyzed(query.frame)
    column = next((attribute for attribute in each(plan.output()) if attribute.name() == "topic"), None)
    topics = set() if column is None else _constants(plan, column.exprId().toString())
    return [OF_ROWS] if not topics or None in topics else sorted(filter(None, topics))


def _constants(node: Any, id: str) -> set[str | None]:
    """The values that a column has in the rows of a plan, None among them if they are not all constants."""
    kind = node.getClass().getSimpleName()
    children = list(each(node.children()))
    if kind == "Union":
        # The columns of a union are those of its first child; those of the others are in the same places.
        place = next(n for n, attribute in enumerate(each(node.output())) if attribute.exprId().toString() == id)
        outputs = [list(each(child.output())) for child in children]
        constants = (_constants(c, out[place].exprId().toString()) for c, out in zip(children, outputs, strict=True))
        return set().union(*constants)
    if kind == "Project":
        for expression in each(node.projectList()):
            if expression.getClass().getSimpleName() == "Alias" and expression.exprId().toString() == id:
                value = expression.child().getClass().getSimpleName()
                if value == "AttributeReference":
                    return _constants(children[0], expression.child().exprId().toString())
                return {str(expression.child().value()) if value == "Literal" else None}
    for child in children:
        if any(attribute.exprId().toString() == id for attribute in each(child.output())):
            return _constants(child, id)
    return {None}


INSIDE = ("sink", "members")
"""Attributes of a sink with the sink that it passes its rows to."""


def _address(sink: Any) -> str | None:
    """The address that a sink writes to, with the database of PostgreSQL, and without user and password."""
    if servers := getattr(sink, "servers", None):
        return str(servers)
    if hosts := getattr(getattr(sink, "access", None), "hosts", None):
        return str(hosts)
    if url := getattr(sink, "url", None):
        parts = urlsplit(str(url))
        return f"{parts.netloc.rpartition('@')[2]}{parts.path}" or None
    inner = [getattr(sink, name) for name in INSIDE if hasattr(sink, name)]
    return _address(inner[0]) if inner else None


# Nodes of what stages of a query read and keep.

PROCESSOR = "TransformWithStateInPySpark"
"""The node of Spark's plan with a processor in Python."""
NATIVE = {
    PROCESSOR: "transformWithStateInPySparkExec",
    "Deduplicate": "dedupe",
    "DeduplicateWithinWatermark": "dedupeWithinWatermark",
    "TransformWithState": "transformWithStateExec",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
}
"""Spark's own stages with state, and their names in its progress; `penstock state` uses these, too."""
AGGREGATE, JOIN = "stateStoreSave", "symmetricHashJoin"


def lookup_nodes(query: Query) -> list[Node]:
    """The tables, topics and files that a query looks rows up in."""
    return [*(node for function in _functions(query) for node in _looked_up(function)), *_static_files(query)]


def _static_files(query: Query) -> Iterator[Node]:
    """The files of frames that are no streams and that the stream is joined with."""
    for leaf in each(analyzed(query.frame).collectLeaves()):
        if leaf.isStreaming() or leaf.getClass().getSimpleName() != "LogicalRelation":
            continue
        relation = leaf.relation()
        if relation.getClass().getSimpleName() == "HadoopFsRelation":
            for path in each(relation.location().rootPaths()):
                yield _files(str(path.toString()), TABLE)


def _looked_up(function: Any) -> list[Node]:
    owner = getattr(function, "__self__", function)
    _, read = FUNCTIONS.get(f"{type(owner).__module__}.{type(owner).__qualname__}", ("", None))
    return read(owner) if read else []


def _of_lookup(function: Any) -> list[Node]:
    return [table(function.rows.table.full_name, function.rows.access.hosts)]


def _of_match(function: Any) -> list[Node]:
    from penstock.cql.matching.id_store import TABLES

    store = function.store
    return [table(f"{store.keyspace}.{name}", store.access.hosts) for name in TABLES]


def _of_global_table(function: Any) -> list[Node]:
    feed = function.source
    if named := getattr(feed, "topic", None):
        return [topic(named, feed.servers)]
    return [table(feed.rows.table.full_name, feed.rows.access.hosts)]


Read: TypeAlias = Callable[[Any], list[Node]]
FUNCTIONS: Mapping[str, tuple[str, Read]] = {
    "penstock.cql.row_lookup.RowLookup": ("RowLookup", _of_lookup),
    "penstock.cql.matching.id_match.Match": ("Match", _of_match),
    "penstock.table.global_tables._Enrich": ("enrich", _of_global_table),
}
"""The functions that read tables of their own, by their class or that of which they are a method, with their names in
plans."""
_STATEFUL = ("transformWithStateUDF", "transformWithStateWithInitStateUDF")
_NAMES = {name for name, _ in FUNCTIONS.values()} | set(_STATEFUL)


def state_nodes(full_name: str, query: Query) -> list[Node]:
    """The states of a query: those with a `name=`, others by the name of their processor or of Spark's operator."""
    names = [name for node in nodes(analyzed(query.frame)) if (name := _name_of_state(node))]
    return [Node(f"state:{full_name}/{name}", STATE, name, "penstock") for name in dict.fromkeys(names)]


def _name_of_state(node: Any) -> str | None:
    """The name of the state of a stage of a plan; None if it keeps none."""
    kind = node.getClass().getSimpleName()
    if kind == PROCESSOR:
        return next(map(_name_of_processor, _functions_of(node)), NATIVE[kind])
    if kind in NATIVE and node.isStreaming():
        return NATIVE[kind]
    if kind == "Aggregate" and node.child().isStreaming():
        return AGGREGATE
    return JOIN if kind == "Join" and node.left().isStreaming() and node.right().isStreaming() else None


def _name_of_processor(function: Any) -> str:
    processor = getattr(getattr(function, "__self__", None), "_stateful_processor", None)
    if processor is None:
        return NATIVE[PROCESSOR]
    named = getattr(processor, "name", None)
    return named if isinstance(named, str) else type(processor).__name__


def _functions(query: Query) -> Iterator[Any]:
    """The Python functions of a plan that may be of `FUNCTIONS`, unpickled."""
    for node in nodes(analyzed(query.frame)):
        if node.getClass().getSimpleName() in ("MapInArrow", "Project"):
            yield from _functions_of(node)


def _functions_of(node: Any) -> Iterator[Any]:
    for expression in each(node.expressions()):
        for part in nodes(expression):
            if part.getClass().getSimpleName() == "PythonUDF" and part.name() in _NAMES:
                yield _unpickled(part.func())


def _unpickled(function: Any) -> Any:
    """The function that this process has pickled into a plan; None if only Spark's workers can load it."""
    from penstock.spark_runtime.pickled import unpickled

    try:
        return unpickled(function)[0]
    except Exception:
        # Whatever its module raises: a graph must not end the run that it shows.
        return None
