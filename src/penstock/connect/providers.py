"""Values that stand elsewhere: `${env:NAME}`, `${file:path:key}`, `${dir:path:file}`, as Kafka finds them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from errno import EFBIG
from pathlib import Path

import javaproperties

from penstock.paths import is_file

REFERENCE = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
"""A provider's name, perhaps a path, and a key; the pattern of Kafka's ConfigTransformer."""
KINDS = {
    "org.apache.kafka.common.config.provider.EnvVarConfigProvider": "env",
    "org.apache.kafka.common.config.provider.FileConfigProvider": "file",
    "org.apache.kafka.common.config.provider.DirectoryConfigProvider": "dir",
}
SIDES = ("key.converter", "value.converter")
NAMING = ("transforms", "predicates", "topic.creation.groups")
"""What properties are named by, which everybody sees."""
LARGEST = 1 << 20
"""Bytes of a file that is read."""


@dataclass(frozen=True)
class Provider:
    """Where values stand: the kind, and what of it may be read, files below `paths` or variables of these names."""

    kind: str
    paths: tuple[Path, ...] = ()
    names: re.Pattern[str] | None = None

    def find(self, path: str | None, key: str) -> str | None:
        """The value; None if there is none, or none that may be read."""
        if self.kind == "env":
            return os.environ.get(key) if self.names is None or self.names.fullmatch(key) else None
        place = Path(path or "")
        if not self._allows(place):
            return None
        if self.kind == "file":
            return read_properties(_read(place, "latin-1")).get(key) if is_file(place) else None
        file = place / key
        return _read(file, "utf-8") if file.name == key and is_file(file) else None

    def _allows(self, place: Path) -> bool:
        try:
            whole = place.resolve()
        except (OSError, ValueError):  # no path
            return False
        return not self.paths or any(whole.is_relative_to(path.resolve()) for path in self.paths)


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration without references, the same as it was given, and what could not be found."""

    config: dict[str, str]
    given: dict[str, str]
    errors: list[tuple[str, str]]
    found: list[tuple[str, str, str]]
    """What references stand for: the property, the reference, the value."""

    def refers(self, name: str) -> bool:
        """Whether a property's value stands elsewhere, in whole or in part."""
        return self.config.get(name) != self.given.get(name)


@dataclass(frozen=True)
class Provided:
    """The worker's providers by name; and its converters, for connectors that name none, with their options."""

    providers: Mapping[str, Provider] = field(default_factory=dict)
    converters: Mapping[str, str] = field(default_factory=dict)

    def resolved(self, config: Mapping[str, str]) -> ResolvedConfig:
        """The configuration with the worker's converters, where it names none, and all references replaced."""
        whole = self._whole(config)
        resolved = ResolvedConfig(dict(whole), whole, [], [])
        seen: dict[str, str] = {}
        for name, text in whole.items():
            references = [each for each in REFERENCE.finditer(text) if each[1] in self.providers]
            try:
                if references and name in NAMING:
                    raise LookupError("properties are named by it, so it must be given itself, not by a reference")
                for reference in references:
                    if reference[0] not in seen:
                        seen[reference[0]] = self._look_up(reference)
                    resolved.found.append((name, reference[0], seen[reference[0]]))
                resolved.config[name] = REFERENCE.sub(lambda each: seen.get(each[0], each[0]), text)
            except LookupError as error:
                resolved.errors.append((name, str(error.args[0])))
        return resolved

    def _whole(self, config: Mapping[str, str]) -> dict[str, str]:
        """As in Connect a converter's options stand where its class does."""
        found = dict(config)
        for side in SIDES:
            if side not in config:
                found = {name: text for name, text in found.items() if not name.startswith(f"{side}.")}
                found |= {name: text for name, text in self.converters.items() if name.startswith(side)}
        return found

    def _look_up(self, reference: re.Match[str]) -> str:
        name, path, key = reference.groups()
        try:
            found = self.providers[name].find(path, key)
        except OSError as error:
            raise LookupError(f"{reference[0]} cannot be read on the worker's machine: {error.strerror}") from error
        except ValueError:
            # Its message would show a part of the file.
            raise LookupError(
                f"{reference[0]} cannot be read on the worker's machine: the file is not what its provider reads"
            ) from None
        if found is None:
            raise LookupError(f"{reference[0]} names nothing that is there on the worker's machine, and may be read")
        return found


def _read(file: Path, encoding: str) -> str:
    with file.open("rb") as opened:
        data = opened.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise OSError(EFBIG, f"the file has more than {LARGEST} bytes")
    return data.decode(encoding)


def read_properties(text: str) -> dict[str, str]:
    """What a Java properties file says; raises `ValueError` where Java would."""
    found: dict[str, str] = javaproperties.loads(text)
    return found
