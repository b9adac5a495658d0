"""References to values in other places: `${env:NAME}`, `${file:path:key}`, `${dir:path:file}`, as in Kafka."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from errno import EFBIG
from pathlib import Path
from typing import TYPE_CHECKING

import javaproperties

from penstock.connect.records.record import NoValue
from penstock.process.paths import is_file

if TYPE_CHECKING:
    # Commands read properties by this module, and do not have the package `regex` of the extra `connect`.
    from penstock.connect.java.bounded_regex import BoundedRegex

KINDS = {
    "org.apache.kafka.common.config.provider.EnvVarConfigProvider": "env",
    "org.apache.kafka.common.config.provider.FileConfigProvider": "file",
    "org.apache.kafka.common.config.provider.DirectoryConfigProvider": "dir",
}
SIDES = ("key.converter", "value.converter", "header.converter")
PLUGIN_PATH = "plugin.path"
"""The worker's folders with code for transforms, separated by commas."""
NAMING = ("transforms", "predicates", "topic.creation.groups")
"""Properties whose values are parts of property names, which are not secret."""
LARGEST = 1 << 20
"""The largest file that is read, in bytes."""
MOST = 64 << 10
"""The longest value of a property, in characters."""


@dataclass(frozen=True)
class SecretReference:
    """A reference in a text: where it begins, as it is written, and its provider's name, path (or None) and key."""

    start: int
    text: str
    name: str
    path: str | None
    key: str


def references(text: str) -> Iterator[SecretReference]:
    """The references in a text, as Kafka's ConfigTransformer finds them, in time that grows as the text.

    Kafka has a regular expression for `${name:path:key}`, whose cost is cubic where braces or colons have no end.
    """
    end = -1
    while (start := text.find("${", end + 1)) >= 0 and (end := text.find("}", start)) >= 0:
        name, colon, rest = text[start + 2 : end].partition(":")
        if colon:
            path, colon, key = rest.partition(":")
            yield SecretReference(start, text[start : end + 1], name, path if colon else None, key if colon else path)


def is_reference(text: str) -> bool:
    """Whether the text is one reference and nothing else."""
    first = next(references(text), None)
    return first is not None and first.text == text


def _replaced(text: str, values: Mapping[str, str]) -> str:
    """The text with the values of references, as far as they are known."""
    parts, at = [], 0
    for each in references(text):
        parts += [text[at : each.start], values.get(each.text, each.text)]
        at = each.start + len(each.text)
    return "".join([*parts, text[at:]])


@dataclass(frozen=True)
class Provider:
    """A source of values, restricted to files below `paths` or to variables that match `names`, if these are set."""

    kind: str
    paths: tuple[Path, ...] = ()
    names: BoundedRegex | None = None

    def find(self, path: str | None, key: str) -> str | None:
        """The value; None if it does not exist or may not be read."""
        if self.kind == "env":
            # A name that does not exist may be of any kind and length: it is not for the expression.
            variable = os.environ.get(key)
            return variable if variable is None or self.names is None or self.names.fullmatch(key) else None
        place = Path(path or "")
        if not self._allows(place):
            return None
        if self.kind == "file":
            return read_properties(read_text(place, "latin-1")).get(key) if is_file(place) else None
        file = place / key
        return read_text(file, "utf-8") if file.name == key and is_file(file) else None

    def _allows(self, place: Path) -> bool:
        try:
            whole = place.resolve()
        except (OSError, ValueError):  # not a valid path
            return False
        return not self.paths or any(whole.is_relative_to(path.resolve()) for path in self.paths)


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration with its references resolved (`config`), as it was before (`unresolved`), and the errors."""

    config: dict[str, str]
    unresolved: dict[str, str]
    errors: list[tuple[str, str]]
    references: list[tuple[str, str, str]]
    """The resolved references: property, reference, value."""

    def refers(self, name: str) -> bool:
        """Whether a property's value comes from a reference, in whole or in part."""
        return self.config.get(name) != self.unresolved.get(name)


@dataclass(frozen=True)
class Provided:
    """The worker's providers by name, and its converters with their options, for connectors without their own.

    A worker that names no converter of keys or of values has JsonConverter, so that each configuration has both.
    `plugin_path` is the worker's alone: a connector cannot say where code may come from.
    """

    providers: Mapping[str, Provider] = field(default_factory=dict)
    converters: Mapping[str, str] = field(default_factory=dict)
    plugin_path: str = ""

    def resolved(self, config: Mapping[str, str]) -> ResolvedConfig:
        """Add the worker's converters to a configuration without its own, and resolve all references."""
        whole = self._whole(config)
        resolved = ResolvedConfig(dict(whole), whole, [], [])
        seen: dict[str, str] = {}
        for name, text in whole.items():
            known = [each for each in references(text) if each.name in self.providers]
            try:
                if known and name in NAMING:
                    raise LookupError("it must be a value, not a reference, because names of properties contain it")
                for reference in known:
                    if reference.text not in seen:
                        seen[reference.text] = self._look_up(reference)
                    resolved.references.append((name, reference.text, seen[reference.text]))
                # Before they are put together: a short value can name a large one many times.
                if sum(len(seen[each.text]) for each in known) > MOST:
                    raise LookupError(f"its value has more than {MOST} characters")
                resolved.config[name] = _replaced(text, seen)
            except LookupError as error:
                resolved.errors.append((name, str(error.args[0])))
        resolved.config.pop(PLUGIN_PATH, None)
        if self.plugin_path:
            resolved.config[PLUGIN_PATH] = self.plugin_path
        return resolved

    def _whole(self, config: Mapping[str, str]) -> dict[str, str]:
        """As in Connect, a converter's options come from the same configuration as its class."""
        # Commands that only read properties load no codecs.
        from penstock.connect.records.converters import OF_WORKER

        whole, of_worker = dict(config), {**OF_WORKER, **self.converters}
        for side in SIDES:
            if side not in config:
                whole = {name: text for name, text in whole.items() if not name.startswith(f"{side}.")}
                whole |= {name: text for name, text in of_worker.items() if name.startswith(side)}
        return whole

    def _look_up(self, reference: SecretReference) -> str:
        try:
            text = self.providers[reference.name].find(reference.path, reference.key)
        except OSError as error:
            raise LookupError(f"{reference.text} cannot be read on the worker's machine: {error.strerror}") from error
        except NoValue as error:
            raise LookupError(f"{reference.text} cannot be read on the worker's machine: {error}") from None
        except ValueError:
            # The error's message would show a part of the file.
            raise LookupError(
                f"{reference.text} cannot be read on the worker's machine: the file is not in its provider's format"
            ) from None
        if text is None:
            raise LookupError(f"{reference.text} does not exist on the worker's machine, or may not be read")
        return text


def read_text(file: Path, encoding: str) -> str:
    """A file's text; raises OSError for one of more than `LARGEST` bytes."""
    with file.open("rb") as opened:
        data = opened.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise OSError(EFBIG, f"the file has more than {LARGEST} bytes")
    return data.decode(encoding)


def read_properties(text: str) -> dict[str, str]:
    """Parse a Java properties file; raises ValueError where Java would fail."""
    properties: dict[str, str] = javaproperties.loads(text)
    return properties
