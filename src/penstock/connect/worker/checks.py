"""Checks a connector's configuration: each property, properties together, and against the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from penstock.connect.definition import Property, read_all
from penstock.connect.records import converters
from penstock.connect.worker.plugins import ConnectorPlugin, plugin_of
from penstock.connect.worker.providers import MOST, Provided
from penstock.connect.worker.secrets import Hiding, is_secret, masked, of_config, unrestored
from penstock.serve.rest_errors import RestError

MOST_PROPERTIES = 1_000
LONGEST_NAME = 500
RENAMED = {"scylla.name": "topic.prefix", "database.server.name": "topic.prefix"}
"""Properties of the connector's version 1 and of Debezium's, and what they are called now; the new name counts."""
MOST_HINTS = 20
"""Names are compared with all known ones for that many unknown properties."""


@dataclass(frozen=True)
class CheckedConfig:
    """The result of the checks: definitions, values and errors by property, and unknown names.

    `config` has the values of references and must not be shown; `shown` is what a client sent, without secrets.
    """

    config: dict[str, str]
    shown: dict[str, str]
    secrets: dict[str, str]
    """Secrets, with their replacements in messages."""
    definitions: tuple[Property, ...]
    values: dict[str, Any]
    errors: dict[str, list[str]]
    unknown: dict[str, str]

    @property
    def messages(self) -> list[str]:
        return [message for messages in self.errors.values() for message in messages]


def require_bounded(config: Mapping[str, str]) -> None:
    """Raises RestError (400) for more than any connector needs, before anything else looks at it."""
    if len(config) > MOST_PROPERTIES:
        raise RestError(400, f"A configuration has at most {MOST_PROPERTIES} properties, not {len(config)}")
    for name, text in config.items():
        if len(name) > LONGEST_NAME:
            raise RestError(400, f"The name of a property has at most {LONGEST_NAME} characters: {name[:80]}...")
        if len(text) > MOST:
            raise RestError(400, f"The value of {name} has {len(text)} characters; the most are {MOST}")


def check(
    config: Mapping[str, str], provided: Provided, *, ask: bool = True, plugin: ConnectorPlugin | None = None
) -> CheckedConfig:
    """Check a configuration, of `plugin` if it names no class.

    With `ask` also against the database, if there is no other error.
    """
    resolved = provided.resolved(_renamed(config))
    plugin = plugin or plugin_of(resolved.config)
    definitions = (
        *plugin.properties(),
        *converters.definitions(resolved.config),
        *plugin.definitions(resolved.config),
    )
    values, errors = read_all(definitions, resolved.config)
    known, shown, secrets = {each.name: each for each in definitions}, masked(resolved.unresolved), of_config(resolved)
    hide = Hiding([secrets])

    def is_seen(name: str) -> bool:
        """Whether messages may contain the value of a property."""
        return name not in resolved.unresolved or not (resolved.refers(name) or is_secret(name))

    errors_by_name: dict[str, list[str]] = {
        name: [hide(message) for message in messages] if is_seen(name) else [_unseen(known[name], shown[name])]
        for name, messages in errors.items()
    }

    def add(problems: Iterable[tuple[str, str]]) -> None:
        for name, message in problems:
            text = f"Invalid value {shown.get(name)} for configuration {name}: {hide(message)}"
            errors_by_name.setdefault(name, []).append(text)

    add(resolved.errors)
    add(unrestored(resolved.unresolved))
    wrong = set(errors_by_name)
    add(
        (name, message if is_seen(name) else "the value behind it is not valid")
        for name, message in plugin.together(values, resolved.config)
        if name not in wrong
    )
    if ask and not errors_by_name:
        add(plugin.problems(values, resolved.config))
    others = [name for name in config if name not in known and not name.startswith(plugin.free)]
    unknown = {name: _hint(name, known if n < MOST_HINTS else ()) for n, name in enumerate(others)}
    return CheckedConfig(resolved.config, shown, secrets, definitions, values, errors_by_name, unknown)


def _renamed(config: Mapping[str, str]) -> Mapping[str, str]:
    """The configuration, with the values of properties by their new names if it has only the old ones."""
    new = {RENAMED[name]: config[name] for name in RENAMED if name in config}
    return {**new, **config}


def _unseen(wanted: Property, shown: str) -> str:
    """The error of a secret value: the original message could contain parts of it."""
    must = f"one of {', '.join(wanted.allowed)}" if wanted.allowed else f"of type {wanted.type}"
    return f"Invalid value {shown} for configuration {wanted.name}: the value behind it is not valid; it must be {must}"


def _hint(name: str, known: Iterable[str]) -> str:
    if new := RENAMED.get(name):
        return f"The old name of {new}, which has this value if it is not given."
    close = get_close_matches(name, known, 1, cutoff=0.75)
    return f"Unknown property, without effect.{f' Did you mean {close[0]}?' if close else ''}"
