"""Rules in YAML files. Errors name the line.

Each rule is a mapping with the arguments of `segment.rule`; its `when` is a predicate or a mapping with one of `count`,
`total`, `sequence`, `absence`, `latest`, `all`, `any` and the arguments of the function of that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from penstock.border.public import public
from penstock.errors import PenstockError, first_line
from penstock.segment import rule_definitions
from penstock.segment.rule_definitions import Condition, Rule, check_names, shown

RULE = {"name": str, "when": (str, dict), "ttl": str, "to": str, "at_least": (int, float), "total": str, "within": str}
RULE |= {"leave": str, "until_false": bool, "prolong": str}
REQUIRED = ("name", "when", "ttl", "to")
TEXT, NUMBER = str, (int, float)
CONDITIONS: dict[str, dict[str, Any]] = {
    "count": {"count": TEXT, "at_least": NUMBER, "within": TEXT},
    "total": {"total": TEXT, "at_least": NUMBER, "within": TEXT},
    "sequence": {"sequence": list, "within": TEXT},
    "absence": {"absence": TEXT, "after": TEXT, "within": TEXT},
    "latest": {"latest": TEXT},
    "all": {"all": list},
    "any": {"any": list},
}
LINE = "__line__"
LARGEST = 1 << 20
"""Maximum bytes of a file."""
DEEPEST = 50
"""Maximum nesting of lists and mappings."""
MOST_REPEATS, FREE_VALUES = 10, 1000
"""Aliases repeat values: a document may expand to at most this multiple of its written values, plus `FREE_VALUES`."""
LONGEST_NUMBER = 100
"""Maximum characters of a number: parsing time is quadratic."""


@dataclass(frozen=True)
class RuleFile:
    """The rules of a file and its text; a stream built from them restarts when the rules in the file change."""

    path: Path
    rules: tuple[Rule, ...]
    text: str

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)


@public("segment.rules")
def rules(path: str | Path) -> RuleFile:
    """The rules of a YAML file: a list of mappings, each with the arguments of `segment.rule`.

    Raises PenstockError if the file cannot be read, has more than 1 MiB, or contains an error.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            data = opened.read(LARGEST + 1)
    except OSError as error:
        raise PenstockError(f"{file} cannot be read: {error.strerror}", next="check the path") from None
    if len(data) > LARGEST:
        raise PenstockError(f"{file} has more than {LARGEST} bytes", next="split it, or write the rules in Python")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PenstockError(f"{file} is not UTF-8: {error}", next="save it as UTF-8") from None
    return RuleFile(file, parse(text, str(file)), text)


def parse(text: str, where: str) -> tuple[Rule, ...]:
    """The rules in a YAML string; `where` is the file name for errors."""
    try:
        entries = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise PenstockError(f"invalid YAML: {error.problem}", where=f"{where}, line {line}", next="fix it") from None
    except (yaml.YAMLError, ValueError) as error:
        # Forbidden characters; invalid pairs.
        raise PenstockError(f"invalid YAML: {first_line(error)}", where=where, next="fix it") from None
    if not isinstance(entries, list):
        raise PenstockError("the file is not a list of rules", where=where, next='start each rule with "- name: ..."')
    every = tuple(rule_of(entry, where) for entry in entries)
    check_names(every)
    return every


def rule_of(entry: Any, where: str) -> Rule:
    """The rule that a mapping describes."""
    if not isinstance(entry, dict):
        raise PenstockError(f"{_shown(entry)} is not a rule", where=where, next='start each rule with "- name: ..."')
    line = f"{where}, line {entry[LINE]}" if LINE in entry else where
    named = f"{line}, rule {_shown(entry['name'])}" if isinstance(entry.get("name"), str) else line
    if missing := [name for name in REQUIRED if name not in entry]:
        raise PenstockError(f"{missing[0]} is missing", where=named, next=f"add a line {missing[0]}: ... to the rule")
    arguments = _checked(entry, RULE, named)
    if isinstance(arguments["when"], dict):
        arguments["when"] = _condition(arguments["when"], named)
    try:
        return replace(rule_definitions.rule(arguments.pop("name"), **arguments), line=line)
    except PenstockError as error:
        raise PenstockError(error.what, where=named, next=error.next) from None


def _condition(entry: Any, where: str) -> Condition:
    if isinstance(entry, str):
        raise PenstockError(
            f"{_shown(entry)} is not a condition", where=where, next="write it as {latest: ...} or {count: ...}"
        )
    kind = next((name for name in CONDITIONS if isinstance(entry, dict) and name in entry), None)
    line = where
    if isinstance(entry, dict) and LINE in entry:
        line = f"{where.partition(', line ')[0]}, line {entry[LINE]}"
    if kind is None:
        raise PenstockError(
            f"{_shown(entry)} is not a condition", where=line, next=f"use one of {', '.join(CONDITIONS)}"
        )
    allowed = CONDITIONS[kind] | ({"when": str} if kind == "total" else {})
    arguments = _checked(entry, allowed, line)
    if missing := [name for name in CONDITIONS[kind] if name not in arguments]:
        raise PenstockError(f"{kind} has no {missing[0]}", where=line, next=f"add {missing[0]}: ...")
    try:
        return _built(kind, arguments, line)
    except PenstockError as error:
        raise error if error.where else PenstockError(error.what, where=line, next=error.next) from None


def _built(kind: str, arguments: dict[str, Any], where: str) -> Condition:
    first = arguments.pop(kind)
    if kind == "all":
        return rule_definitions.all_of(*(_condition(part, where) for part in first))
    if kind == "any":
        return rule_definitions.any_of(*(_condition(part, where) for part in first))
    if kind == "sequence":
        return rule_definitions.sequence(*map(str, first), **arguments)
    return getattr(rule_definitions, kind)(first, **arguments)  # type: ignore[no-any-return]


def _checked(entry: Mapping[str, Any], allowed: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The arguments, with their names and types checked."""
    arguments = {name: value for name, value in entry.items() if name != LINE}
    for name, value in arguments.items():
        if name not in allowed:
            raise PenstockError(f"unknown {_shown(name)}", where=where, next=f"use {', '.join(allowed)}")
        kinds = allowed[name] if isinstance(allowed[name], tuple) else (allowed[name],)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise PenstockError(f"{name} is {_shown(value)}, not {wanted}", where=where, next=f"fix {name}")
    return arguments


def _shown(value: Any) -> str:
    plain = {name: part for name, part in value.items() if name != LINE} if isinstance(value, dict) else value
    return shown(plain)


class _Loader(yaml.SafeLoader):
    """Mappings keep the line on which they begin; duplicate keys are errors; the size of the document is bounded.

    Aliases may repeat a value. They may not contain themselves or expand a small file to a large document.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._sizes: dict[int, int] = {}
        """The number of values in each complete node."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        is_alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"it is nested more than {DEEPEST} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise yaml.MarkedYAMLError(problem="an alias refers to a value that contains it", problem_mark=mark)
        if node is not None and not is_alias:
            self._sizes[id(node)] = size = 1 + sum(self._sizes[id(part)] for part in _parts(node))
            if size > MOST_REPEATS * len(self._sizes) + FREE_VALUES:
                raise yaml.MarkedYAMLError(problem=f"aliases repeat {size} values", problem_mark=mark)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        if kind in ("int", "float") and isinstance(node, yaml.ScalarNode) and len(node.value) > LONGEST_NUMBER:
            raise yaml.MarkedYAMLError(
                problem=f"a number has more than {LONGEST_NUMBER} characters", problem_mark=node.start_mark
            )
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError):
            # PyYAML raises these for a string that does not fit its tag, such as a date in month 13.
            shown = _shown(node.value) if isinstance(node, yaml.ScalarNode) else "this"
            raise yaml.MarkedYAMLError(problem=f"{shown} is not a {kind}", problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key.value, str):
                if key.value in seen:
                    problem = f"{_shown(key.value)} appears twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return {**super().construct_mapping(node, deep=True), LINE: node.start_mark.line + 1}


def _parts(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value
