"""Rules in YAML files: the mapping of one rule, and files of them, whose errors name the line.

Each rule is a mapping with the arguments of `segment.rule`; its `when` is a predicate or a mapping with one of `count`,
`total`, `sequence`, `absence`, `latest`, `all`, `any` and the arguments of the function of that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from penstock.errors import PenstockError
from penstock.stream.segment import rules as made
from penstock.stream.segment.rules import Condition, Rule, check_names, with_line

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


@dataclass(frozen=True)
class RuleFile:
    """Rules of a file, and the file as it was: a stream that is made of them begins anew when it changes."""

    path: Path
    rules: tuple[Rule, ...]
    text: str

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)


def rules(path: str | Path) -> RuleFile:
    """The rules of a YAML file: a list of mappings, each with the arguments of `segment.rule`."""
    file = Path(path)
    try:
        text = file.read_text()
    except OSError as error:
        raise PenstockError(f"{file} cannot be read: {error.strerror}", next="check the path") from None
    except UnicodeDecodeError as error:
        raise PenstockError(f"{file} is no UTF-8: {error}", next="save it as UTF-8") from None
    return RuleFile(file, parse(text, str(file)), text)


def parse(text: str, where: str) -> tuple[Rule, ...]:
    """The rules in a text of YAML; `where` is the file's name, for errors."""
    try:
        found = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise PenstockError(f"no YAML: {error.problem}", where=f"{where}, line {line}", next="correct it") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # Characters that may not be there, dates that are none, and nesting without end.
        raise PenstockError(f"no YAML: {str(error).strip().splitlines()[0]}", where=where, next="correct it") from None
    if not isinstance(found, list):
        raise PenstockError("no list of rules", where=where, next='begin each rule with "- name: ..."')
    every = tuple(rule_of(one, where) for one in found)
    check_names(every)
    return every


def rule_of(given: Any, where: str) -> Rule:
    """The rule that a mapping stands for."""
    if not isinstance(given, dict):
        raise PenstockError(f"{given!r} is no rule", where=where, next='begin each rule with "- name: ..."')
    line = f"{where}, line {given[LINE]}" if LINE in given else where
    named = f"{line}, rule {given['name']!r}" if isinstance(given.get("name"), str) else line
    if missing := [name for name in REQUIRED if name not in given]:
        raise PenstockError(f"no {missing[0]}", where=named, next=f"add a line {missing[0]}: ... to the rule")
    arguments = _checked(given, RULE, named)
    if isinstance(arguments["when"], dict):
        arguments["when"] = _condition(arguments["when"], named)
    try:
        return with_line(made.rule(arguments.pop("name"), **arguments), line)
    except PenstockError as error:
        raise PenstockError(error.what, where=named, next=error.next) from None


def _condition(given: Any, where: str) -> Condition:
    if isinstance(given, str):
        raise PenstockError(f"{given!r} is no condition", where=where, next="write it as {latest: ...} or {count: ...}")
    kind = next((name for name in CONDITIONS if isinstance(given, dict) and name in given), None)
    line = where
    if isinstance(given, dict) and LINE in given:
        line = f"{where.partition(', line ')[0]}, line {given[LINE]}"
    if kind is None:
        raise PenstockError(f"no condition: {_shown(given)}", where=line, next=f"use one of {', '.join(CONDITIONS)}")
    allowed = CONDITIONS[kind] | ({"when": str} if kind == "total" else {})
    arguments = _checked(given, allowed, line)
    if missing := [name for name in CONDITIONS[kind] if name not in arguments]:
        raise PenstockError(f"{kind} has no {missing[0]}", where=line, next=f"add {missing[0]}: ...")
    try:
        return _built(kind, arguments, line)
    except PenstockError as error:
        raise error if error.where else PenstockError(error.what, where=line, next=error.next) from None


def _built(kind: str, arguments: dict[str, Any], where: str) -> Condition:
    first = arguments.pop(kind)
    if kind == "all":
        return made.all_of(*(_condition(part, where) for part in first))
    if kind == "any":
        return made.any_of(*(_condition(part, where) for part in first))
    if kind == "sequence":
        return made.sequence(*map(str, first), **arguments)
    return getattr(made, kind)(first, **arguments)  # type: ignore[no-any-return]


def _checked(given: Mapping[str, Any], allowed: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The arguments, each of its kind."""
    arguments = {name: value for name, value in given.items() if name != LINE}
    for name, value in arguments.items():
        if name not in allowed:
            raise PenstockError(f"unknown {name!r}", where=where, next=f"use {', '.join(allowed)}")
        kinds = allowed[name] if isinstance(allowed[name], tuple) else (allowed[name],)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise PenstockError(f"{name} is {_shown(value)}, not {wanted}", where=where, next=f"correct {name}")
    return arguments


def _shown(value: Any) -> str:
    plain = {name: one for name, one in value.items() if name != LINE} if isinstance(value, dict) else value
    return repr(plain)


class _Loader(yaml.SafeLoader):
    """Mappings remember the line on which they begin, and have no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} stands there twice", problem_mark=key.start_mark)
            if isinstance(key.value, str):
                seen.add(key.value)
        return {**super().construct_mapping(node, deep=True), LINE: node.start_mark.line + 1}
