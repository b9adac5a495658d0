"""Properties as in Kafka's ConfigDef: types, defaults, checks, and how values are parsed from strings.

A check reports the error of one value. All errors of a configuration are found together, property by property, because
Kafka Connect reports them so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any, Literal, TypeVar

Type = Literal["STRING", "INT", "LONG", "BOOLEAN", "LIST", "PASSWORD", "CLASS"]
Importance = Literal["HIGH", "MEDIUM", "LOW"]
T = TypeVar("T")
Check = Callable[[Any], str | None]
"""Returns the error of a value, or None."""

REQUIRED: Any = object()
"""The default of a property that must be set."""
INERT = "Accepted for compatibility, without effect here."
MOST_ALIASES = LONGEST_ALIAS = 100
RANGES = {"INT": (-(2**31), 2**31 - 1), "LONG": (-(2**63), 2**63 - 1)}


@dataclass(frozen=True)
class Property:
    """A property; `default` is a value of its type, None for "not set", or `REQUIRED`."""

    name: str
    type: Type
    default: Any
    doc: str
    check: Check | None = None
    importance: Importance = "MEDIUM"
    group: str = "Connector"
    display: str = ""
    allowed: tuple[str, ...] = ()
    """Recommended values; if `check` is None, other values are refused. Case does not matter."""

    def read(self, text: str | None) -> Any:
        """Parse a value; raises ValueError with the error and how to fix it."""
        if text is None:
            if self.default is REQUIRED:
                raise ValueError(f'Missing required configuration "{self.name}" which has no default value.')
            return self.default
        value = _parse(self, text.strip())
        if self.allowed and not self.check:
            # In the case of its definition, so that callers can compare it.
            value = next((each for each in self.allowed if each.lower() == str(value).lower()), value)
            wrong = None if value in self.allowed else f"it must be one of {', '.join(self.allowed)}"
        else:
            wrong = self.check(value) if self.check else None
        if wrong:
            raise ValueError(f"Invalid value {text} for configuration {self.name}: {wrong}")
        return value

    def described(self, order: int) -> dict[str, Any]:
        """The definition as in Connect's REST API."""
        required = self.default is REQUIRED
        return {
            "name": self.name,
            "type": self.type,
            "required": required,
            "default_value": None if required else as_text(self.default),
            "importance": self.importance,
            "documentation": self.doc,
            "group": self.group,
            "order": order,
            "width": "MEDIUM",
            "display_name": self.display or self.name,
            "dependents": [],
        }


def from_toml(name: str, about: Mapping[str, Any], **more: Any) -> Property:
    """The property that a table of a TOML file describes; `required` and `inert` are for its default and its doc."""
    fields = {"default": None, **about, **more}
    if fields.pop("required", False):
        fields["default"] = REQUIRED
    if fields.pop("inert", False):
        fields["doc"] = f"{INERT} {fields['doc']}".strip()
    return Property(name, **{**fields, "allowed": tuple(fields.get("allowed", ()))})


def of_file(package: str, file: str, checks: Mapping[str, Check]) -> tuple[Property, ...]:
    """The properties of a TOML file, in its order: a section is a group, and `check` names one of `checks`."""
    groups = tomllib.loads((files(package) / file).read_text())
    return tuple(
        from_toml(name, {**about, "check": checks.get(about.get("check"))}, group=group)
        for group, members in groups.items()
        for name, about in members.items()
    )


def of_property(*names: str, convert: Callable[[Any], Any] | None = None) -> dict[str, Any]:
    """The metadata of a field of settings that has the value of a property, or what `convert` makes of it.

    Connectors that share the settings may call the property differently: `names` are all of these.
    """
    return {"properties": names, "convert": convert or (lambda value: value)}


def settings_of(kind: type[T], values: Mapping[str, Any], **others: Any) -> T:
    """The settings of valid values; `others` are fields of several properties, or of none.

    A field keeps its default if the connector does not have its property.
    """
    by_name = {each.name: each.metadata for each in fields(kind) if each.metadata}  # type: ignore[arg-type]
    read = {
        field: of["convert"](values[name])
        for field, of in by_name.items()
        if field not in others
        for name in of["properties"]
        if name in values
    }
    return kind(**read, **others)


def as_text(value: Any) -> str | None:
    """A value as a string, as Connect writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, (list, tuple)) else str(value)


def _parse(wanted: Property, text: str) -> Any:
    if wanted.type == "LIST":
        return [item.strip() for item in text.split(",")] if text else []
    if wanted.type == "BOOLEAN":
        if text.lower() not in ("true", "false"):
            raise ValueError(
                f"Invalid value {text} for configuration {wanted.name}: Expected value to be true or false"
            )
        return text.lower() == "true"
    if wanted.type in RANGES:
        return _number(wanted, text)
    return text


def _number(wanted: Property, text: str) -> int:
    low, high = RANGES[wanted.type]
    try:
        # Python accepts more than Java: 1_000, and digits of other scripts.
        if low <= int(text) <= high and text.isascii() and "_" not in text:
            return int(text)
    except ValueError:
        pass
    raise ValueError(
        f"Invalid value {text} for configuration {wanted.name}: Not a number of type {wanted.type}; "
        f"give a whole number from {low} to {high}"
    )


def listed(text: str | None) -> list[str]:
    """The aliases of a list without duplicates, as many as a configuration may have."""
    items = (item.strip() for item in (text or "").split(","))
    return list(dict.fromkeys(item for item in items if item))[:MOST_ALIASES]


def aliases(names: list[str]) -> str | None:
    """The check of a list of aliases; each one adds properties to the answer of a validation."""
    if len(names) > MOST_ALIASES:
        return f"{len(names)} aliases, of which a configuration has at most {MOST_ALIASES}"
    if long := next((name for name in names if len(name) > LONGEST_ALIAS), None):
        return f"an alias has at most {LONGEST_ALIAS} characters, not {len(long)}"
    return "Duplicate alias provided." if len(set(names)) < len(names) else None


def full_name(name: str | None, classes: Iterable[str]) -> str:
    """The full name of a class, from its full or short name; a converter's short name may lack "Converter"."""
    name = (name or "").strip()
    for full in classes:
        last = full.rpartition(".")[2]
        if name in (last, last.removesuffix("Converter")):
            return full
    return name


def at_least(low: float) -> Check:
    """A check for numbers of at least `low`."""
    return lambda value: None if value >= low else f"Value must be at least {low:g}"


def read_all(
    properties: Iterable[Property], config: Mapping[str, str | None]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The values of all properties by name, the default for a wrong value; and the errors by name."""
    values: dict[str, Any] = {}
    errors: dict[str, list[str]] = {}
    for wanted in properties:
        try:
            values[wanted.name] = wanted.read(config.get(wanted.name))
        except ValueError as error:
            errors[wanted.name] = [str(error)]
            values[wanted.name] = None if wanted.default is REQUIRED else wanted.default
    return values, errors
