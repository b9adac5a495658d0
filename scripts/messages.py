"""Prints the list of all error messages: `python scripts/messages.py`; `make docs` puts it into its page of troubles.

It reads the source, not the running program. A message is the text given to an error's class, as far as the source has
it: values that are known only at run time become their names, «table», or `…`. A text in a parameter is taken from the
calls of the function, one in a local variable from its assignments. A text of which the source says nothing must be in
`ELSEWHERE`, with the reason; anything else is an error of this script, so that no message is missed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path

from penstock.wire import errors
from penstock.wire.errors import CODES, UnknownServerError

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/penstock"
AREAS = {
    "Commands": "cli __main__ extras",
    "Settings": "durations border process serve lazy",
    "Changes of tables (`cdc`)": "cdc",
    "The database (CQL connections and values)": "database",
    "CQL tables (`cql`)": "cql",
    "Kafka sources and sinks (`kafka`)": "kafka",
    "The Kafka client (`penstock.wire`)": "wire",
    "Formats and the schema registry": "codec",
    "Pipelines and queries": "run query spark_runtime",
    "Checkpoints": "checkpoint",
    "Windows, tables and joins": "window table join keyed_state",
    "Segments (`segment`)": "segment",
    "Replication and comparison (`replicate`)": "replicate",
    "PostgreSQL, files and Delta Lake": "postgres files delta",
    "Kafka Connect's interface (`penstock connect`)": "connect",
    "Events by HTTP (`penstock ingest`)": "ingest",
    "State from outside (`penstock state`)": "state",
    "Metrics, graphs and the console (`penstock status`, `console`, `dashboards`)": "watch console metrics",
    "Local servers, jars and Java": "local",
    "Compiled loops": "native",
}
AREA = {part: area for area, parts in AREAS.items() for part in parts.split()}
TEXT_AT = {"RefusedRequest": 1, "RestError": 1, "BadBytes": 1, "ConnectRefused": 1, "OSError": 1}
"""Where the text is among the arguments, if it is not the first."""
SILENT = {"AttributeError", "AssertionError", "KeyError", "RecursionError", "StopIteration", "SystemExit"}
"""Errors without a text for users."""
ELSEWHERE = {
    "'; '.join(checked.messages)": "what the check of the configuration found",
    "messages[0]": "what the check of the configuration found",
    "f'{name}: {message}'": "what the check of the configuration found",
    "why.detail": "the HTTP library's description of a status",
    "self.broken": "the message of an earlier error of the disk",
    "receipt": "the rows that were not written; the class says the message",
    "error.what": "the message of another of our errors, with another place",
    "stopped.problem": "why the checkpoint of a stopped pipeline cannot be read",
    "error.detail": "the message of a refusal of a caller",
    "error.detail or str(error)": "what Kafka says of a setting",
    "str(what or f'HTTP {answer.status}')[:500]": "the answer of a server of state",
    "fault.text": "the message of the error that ended the query",
    "str(error)": "the message of another error: of the Kafka client, or of a library",
    "str(problem)": "the message of another error: of the Kafka client, or of a library",
    "refused.what": "what Spark refuses; `spark_refusals` says the message",
    "said": "the first line of an error of Spark or of the user's code",
    "text": "the value that is not valid; the caller says what is wrong with it",
    "at": "the value that is not valid; the caller says what is wrong with it",
}
"""Expressions of texts that the source does not say, and what they are."""
MOST = 24
"""A message with more alternatives is listed with placeholders instead."""

PLACE = re.compile("«[^»]*»|…")
"""A value that is known only at run time."""
DEEPEST = 3
"""How many calls a text is followed back through parameters."""


@dataclass(frozen=True)
class Entry:
    """A message on the page: its area, its text with placeholders, and the next step."""

    area: str
    what: str
    next: str


@dataclass
class Module:
    """A parsed file: its functions, classes, imported names and constants."""

    name: str
    tree: ast.Module
    functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = field(default_factory=dict)
    owners: dict[ast.AST, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)

    @property
    def area(self) -> str:
        return AREA[self.name.split(".")[1]]


@dataclass(frozen=True)
class Context:
    """Where an expression is: its module and function, and what the function's parameters stand for."""

    module: Module
    function: ast.FunctionDef | ast.AsyncFunctionDef | None
    given: Mapping[str, tuple[ast.expr, Context]]
    seen: frozenset[str] = frozenset()

    def inside(self, name: str) -> Context:
        return Context(self.module, self.function, self.given, self.seen | {name})


@cache
def modules() -> dict[str, Module]:
    made = {}
    for file in sorted(SOURCE.rglob("*.py")):
        name = ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        if name != "penstock":
            made[name] = _module(name, ast.parse(file.read_text()))
    return made


def _module(name: str, tree: ast.Module) -> Module:
    module = Module(name, tree)
    for statement in tree.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.expr):
            module.constants[target.id] = value
    for node in ast.walk(tree):  # from the outside in, so that the innermost function remains
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            module.functions.setdefault(node.name, []).append(node)
            module.owners |= dict.fromkeys((inner for part in node.body for inner in ast.walk(part)), node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock"):
            module.imports |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return module


@cache
def kinds(root: str) -> frozenset[str]:
    """The names of a class and all its subclasses."""
    found = {root}
    nodes = (node for module in modules().values() for node in ast.walk(module.tree))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    while more := {one.name for one in classes if {name_of(base) for base in one.bases} & found} - found:
        found |= more
    return frozenset(found)


def name_of(expression: ast.AST | None) -> str:
    """The last part of a dotted name; empty for another expression."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def entries() -> list[Entry]:
    """All messages, by area, each once."""
    found = [entry for module in modules().values() for entry in (*_classes(module), *_constructed(module))]
    wire = AREA["wire"]
    # Those that the client knows, and not the numbers that it met meanwhile.
    known = [one for _, one in sorted(CODES.items()) if one.__base__ is not UnknownServerError]
    found += [Entry(wire, f"{one.name}: {one.says}", "") for one in known]
    order = list(AREAS)
    kept: dict[tuple[str, str], Entry] = {}
    for entry in found:
        key = entry.area, entry.what
        if key not in kept or not kept[key].next:
            kept[key] = entry
    chosen = _most_general(list(kept.values()))
    return sorted(chosen, key=lambda entry: (order.index(entry.area), _sorting(entry.what)))


def _most_general(found: Sequence[Entry]) -> list[Entry]:
    """The entries without those that another one with the same next step covers; of equal ones, the first."""
    kept: list[Entry] = []
    # The fewer words of its own a template has, the more it covers.
    for entry in sorted(found, key=lambda entry: len(PLACE.sub("", entry.what))):
        if not any(_covers(other, entry) for other in kept):
            kept.append(entry)
    return kept


def _covers(general: Entry, entry: Entry) -> bool:
    same = (general.area, general.next) == (entry.area, entry.next)
    return same and _whole(general.what) and bool(pattern(general.what).fullmatch(entry.what))


def pattern(template: str) -> re.Pattern[str]:
    """What the messages of a template look like."""
    return re.compile(".*".join(map(re.escape, PLACE.split(template))), re.DOTALL)


def _sorting(text: str) -> str:
    return re.sub(r"[^\w ]", "", PLACE.sub("", text)).strip().lower()


def _classes(module: Module) -> Iterator[Entry]:
    """The Kafka client's own errors, which say their text in their class."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and node.name in kinds("KafkaError"):
            said = {
                name_of(part.targets[0]): ast.literal_eval(part.value)
                for part in node.body
                if isinstance(part, ast.Assign) and name_of(part.targets[0]) in ("name", "says")
            }
            writes_itself = any(isinstance(part, ast.FunctionDef) and part.name == "__str__" for part in node.body)
            if said.get("says") and not writes_itself:
                yield Entry(module.area, f"{said['name']}: {said['says']}", "")


def _constructed(module: Module) -> Iterator[Entry]:
    """The messages of errors that a module makes: each of ours, and what it raises of other classes."""
    raised = {id(node.exc) for node in ast.walk(module.tree) if isinstance(node, ast.Raise)}
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func)
        # These become our errors, or answers, elsewhere.
        ours = name in kinds("PenstockError") or name in ("Refusal", "RefusedRequest", "DamagedRow")
        if not ours and not (id(node) in raised and _is_error(name)) and not _is_usage(node):
            continue
        text = _text(node, name)
        if text is None:
            continue
        step = next((word.value for word in node.keywords if word.arg == "next"), None) if ours else _of_class(name)
        yield from _entries(module, node, text, step)


def _of_class(name: str) -> ast.expr | None:
    """The next step that a class of the Kafka client says for all of its errors."""
    step = getattr(getattr(errors, name, None), "next", "")
    return ast.Constant(step) if step else None


def _is_error(name: str) -> bool:
    builtin = getattr(__builtins__, name, None) if not isinstance(__builtins__, dict) else __builtins__.get(name)
    known = isinstance(builtin, type) and issubclass(builtin, Exception) and name not in SILENT
    more = ("ArgumentTypeError", "MarkedYAMLError", "BadBytes", "CorruptRecords", "DecompressedTooLarge")
    return known or name in more or name in kinds("KafkaError")


def _is_usage(call: ast.Call) -> bool:
    """`parser.error(...)` of argparse."""
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func).endswith("parser.error")


def _text(call: ast.Call, name: str) -> ast.expr | None:
    words = {word.arg: word.value for word in call.keywords}
    at = TEXT_AT.get(name, 0)
    if len(call.args) > at:
        return call.args[at]
    return next((words[word] for word in ("what", "detail", "problem") if word in words), None)


def _entries(module: Module, call: ast.Call, text: ast.expr, step: ast.expr | None) -> Iterator[Entry]:
    if isinstance(text, ast.Constant) and not isinstance(text.value, str):
        return
    function = module.owners.get(call)
    for context in _contexts(module, function, (text, step)):
        found = [told for told in read(text, context) if _says(told)]
        written = ast.unparse(text)
        if not found and not {written, f"{module.name}: {written}"} & ELSEWHERE.keys():
            raise LookupError(f"{module.name}, line {call.lineno}: nothing is known of {written}; see ELSEWHERE")
        steps = read(step, context) if step is not None else [""]
        for number, told in enumerate(found):
            paired = [steps[number]] if len(steps) == len(found) else steps
            yield Entry(module.area, told, " — or: ".join(one for one in paired if _says(one)))


def _says(text: str) -> bool:
    """Whether a template has words of its own."""
    return bool(re.search(r"[^\W\d]{2}", PLACE.sub("", text)))


def _phrase(text: str, least: int = 2) -> bool:
    """Whether a template has several words of its own: a single one may be any name."""
    return len(re.findall(r"[^\W\d]{2,}", PLACE.sub("", text))) >= least


def _whole(text: str) -> bool:
    """Whether a template is understood without its parameters."""
    return _phrase(text, 3)


def _contexts(
    module: Module,
    function: ast.FunctionDef | ast.AsyncFunctionDef | None,
    texts: Sequence[ast.expr | None],
    depth: int = DEEPEST,
) -> list[Context]:
    """One context for each call of the function, if its parameters hold words of the message; else one without."""
    bare = Context(module, function, {})
    if function is None or not depth or not (wanted := _parameters(function) & _used(texts, function)):
        return [bare]
    text, step = texts[0], texts[-1]
    if depth == DEEPEST and text and not wanted & _used([step], function) and all(map(_whole, read(text, bare))):
        return [bare]  # the message and its next step are whole without the parameters
    found = []
    for caller, call in calls(module, function):
        outer = Context(caller, caller.owners.get(call), {})
        given = {name: (value, outer) for name, value in bound(function, call).items() if name in wanted}
        found += [
            Context(module, function, {name: (value, one) for name, (value, _) in given.items()})
            for one in _contexts(caller, outer.function, [value for value, _ in given.values()], depth - 1)
        ]
    spoken = [one for one in found if any(any(map(_phrase, read(*value))) for value in one.given.values())]
    return spoken + [bare] * (len(spoken) < len(found) or not found)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    names = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return {one.arg for one in names} - {"self", "cls"}


def _used(texts: Sequence[ast.expr | None], function: ast.AST) -> set[str]:
    """The names in expressions, and in what is assigned to these names."""
    names: set[str] = set()
    waiting = [text for text in texts if text is not None]
    while waiting:
        for node in ast.walk(waiting.pop()):
            if isinstance(node, ast.Name) and node.id not in names:
                names.add(node.id)
                waiting += assigned(function, node.id)
    return names


def bound(function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call) -> dict[str, ast.expr]:
    """The arguments of a call, by the names of the function's parameters, with their defaults."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
    if names[:1] in (["self"], ["cls"]):
        names = names[1:]
    placed = dict(zip(names, (one for one in call.args if not isinstance(one, ast.Starred)), strict=False))
    return defaults | placed | {word.arg: word.value for word in call.keywords if word.arg}


@cache
def _all_calls() -> dict[str, list[tuple[Module, ast.Call]]]:
    found: dict[str, list[tuple[Module, ast.Call]]] = {}
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and (name := name_of(node.func)):
                found.setdefault(name, []).append((module, node))
    return found


def calls(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[Module, ast.Call]]:
    """The calls of a function in its module, and in modules that import it or its module."""
    for caller, call in _all_calls().get(function.name, ()):
        origin = caller.imports.get(function.name if isinstance(call.func, ast.Name) else name_of(_owner(call.func)))
        if caller is module or origin in (f"{module.name}.{function.name}", module.name):
            yield caller, call


def _owner(expression: ast.expr) -> ast.expr | None:
    return expression.value if isinstance(expression, ast.Attribute) else None


def assigned(function: ast.AST | None, name: str) -> list[ast.expr]:
    """What a function assigns to a name, also as a part of a tuple."""
    found: list[ast.expr] = []
    for node in ast.walk(function) if function else ():
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found += _matching(target, node.value, name)
        elif isinstance(node, ast.NamedExpr | ast.AnnAssign) and name_of(node.target) == name and node.value:
            found.append(node.value)
    return found


def _matching(target: ast.expr, value: ast.expr, name: str) -> list[ast.expr]:
    if isinstance(target, ast.Name) and target.id == name:
        return [value]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return [part for one, part in zip(target.elts, value.elts, strict=True) if name_of(one) == name]
    return []


def read(expression: ast.expr, context: Context) -> list[str]:
    """The texts that an expression can be, with placeholders for what is not known."""
    found = list(dict.fromkeys(_read(expression, context)))
    return found if len(found) <= MOST else [placeholder(expression)]


def _read(expression: ast.expr, context: Context) -> list[str]:
    match expression:
        case ast.Constant(value=str() | int() | float() as value) if not isinstance(value, bool):
            return [str(value)]
        case ast.JoinedStr(values=parts):
            return joined([read(part, context) for part in parts], expression)
        case ast.FormattedValue(value=value, conversion=conversion):
            return [placeholder(value)] if conversion == ord("r") else read(value, context)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return joined([read(left, context), read(right, context)], expression)
        case ast.IfExp(body=body, orelse=other):
            return [*read(body, context), *read(other, context)]
        case ast.BoolOp(op=ast.Or(), values=values):
            return [text for value in values for text in read(value, context)]
        case ast.Name(id=name):
            return _named(name, context) or [placeholder(expression)]
        case ast.Subscript(value=ast.Name(id=name)) if isinstance(table := _constant(name, context), ast.Dict):
            return [text for value in table.values for text in read(value, context)]
        case ast.Call():
            return _returned(expression, context) or [placeholder(expression)]
    return [placeholder(expression)]


def joined(parts: Sequence[Sequence[str]], expression: ast.expr) -> list[str]:
    """Each combination of the parts; parts with many alternatives become placeholders if there are too many."""
    size = 1
    for part in parts:
        size *= len(part)
    if size > MOST:
        parts = [part if len(part) == 1 else ["…"] for part in parts]
    return ["".join(chosen) for chosen in product(*parts)]


def _constant(name: str, context: Context) -> ast.expr | None:
    """The value of a constant of this module, or of one that it imports."""
    if name in context.module.constants:
        return context.module.constants[name]
    home, _, origin = context.module.imports.get(name, "").rpartition(".")
    return modules()[home].constants.get(origin) if home in modules() else None


def _named(name: str, context: Context) -> list[str]:
    if name in context.seen:
        return []
    if name in context.given:
        value, outer = context.given[name]
        return _worded(read(value, outer), name)
    if (constant := _constant(name, context)) is not None and name.strip("_").isupper():
        return [text for text in read(constant, context) if text != "…" and "«" not in text]
    inside = context.inside(name)
    return _worded([text for value in assigned(context.function, name) for text in read(value, inside)], name)


def _worded(texts: Sequence[str], name: str) -> list[str]:
    """The texts, with a placeholder of their name for those without words; empty if none has words."""
    if not any(map(_says, texts)):
        return []
    return [text if _says(text) or not text else placeholder(ast.Name(name)) for text in texts]


def _returned(call: ast.Call, context: Context) -> list[str]:
    """What a function of ours that returns a string returns for these arguments."""
    name = name_of(call.func)
    home = context.module
    origin = home.imports.get(name if isinstance(call.func, ast.Name) else name_of(_owner(call.func)), "")
    if origin:
        home = modules().get(origin) or modules().get(origin.rpartition(".")[0]) or home
    for function in home.functions.get(name, ()):
        if isinstance(function.returns, ast.Name) and function.returns.id == "str" and name not in context.seen:
            given = {key: (value, context) for key, value in bound(function, call).items()}
            inner = Context(home, function, given, context.seen | {name})
            nodes = [node for part in function.body for node in ast.walk(part)]
            values = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
            texts = [text for value in values for text in read(value, inner)]
            return [text if _says(text) or not text else "…" for text in texts] if any(map(_says, texts)) else []
    return []


def placeholder(expression: ast.expr) -> str:
    """A value known only at run time: the name of what it is made of, or `…`."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return f"«{name.strip('_').replace('_', ' ')}»"
        case ast.Call(func=ast.Attribute(attr="join"), args=[ast.Name() | ast.Attribute() as names]):
            return placeholder(names)
        case ast.Call(func=ast.Name(id="str" | "repr" | "sorted" | "len" | "min" | "max"), args=[inner]):
            return placeholder(inner)
        case ast.Call(func=ast.Attribute(attr="join"), args=[ast.Call(args=[*_, inner])]):
            return placeholder(inner)
        case ast.Subscript(value=inner):
            return placeholder(inner)
    return "…"


def row(entry: Entry) -> str:
    return f"| {cell(entry.what)} | {cell(entry.next)} |"


def cell(text: str) -> str:
    """Text as it looks on a page: Markdown's signs lose their meaning, except for code."""
    plain = " ".join(text.split())
    return re.sub(r"([|<*\[\]])", r"\\\1", plain)


def lines() -> str:
    """The list, as a part of a page."""
    found = entries()
    said = []
    for area in AREAS:
        rows = [row(entry) for entry in found if entry.area == area]
        if rows:
            said += [f"### {area}", "", "| message | what to do |", "|---|---|", *rows, ""]
    return "\n".join(said)


def main() -> int:
    print(lines())
    return 0


if __name__ == "__main__":
    sys.exit(main())
