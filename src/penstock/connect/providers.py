"""Values that stand elsewhere: `${env:NAME}`, `${file:path:key}`, `${dir:path:file}`, as Kafka finds them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

REFERENCE = re.compile(r"\$\{(\w+):(?:([^}]*?):)?([^}:]+)\}")
KINDS = {
    "org.apache.kafka.common.config.provider.EnvVarConfigProvider": "env",
    "org.apache.kafka.common.config.provider.FileConfigProvider": "file",
    "org.apache.kafka.common.config.provider.DirectoryConfigProvider": "dir",
}


@dataclass(frozen=True)
class Resolved:
    """A configuration without references, and what could not be found."""

    config: dict[str, str]
    errors: list[tuple[str, str]]


@dataclass(frozen=True)
class Provided:
    """The worker's providers by name, with their kinds; and its defaults for properties that a connector leaves out."""

    providers: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)

    def resolved(self, config: Mapping[str, str]) -> Resolved:
        """The configuration with the worker's defaults in it and all references replaced."""
        errors: list[tuple[str, str]] = []
        texts: dict[str, str] = {}
        for name, text in {**self.defaults, **config}.items():
            try:
                texts[name] = REFERENCE.sub(self._look_up, text)
            except LookupError as error:
                texts[name] = text
                errors.append((name, str(error.args[0])))
        return Resolved(texts, errors)

    def _look_up(self, reference: re.Match[str]) -> str:
        provider, path, key = reference.groups()
        kind = self.providers.get(provider)
        if kind is None:
            return reference[0]
        if kind == "env":
            found = os.environ.get(key)
        elif kind == "file":
            found = _properties(Path(path or "")).get(key)
        else:
            file = Path(path or "") / key
            found = file.read_text() if file.is_file() else None
        if found is None:
            raise LookupError(f"{reference[0]} names nothing that is there on the worker's machine")
        return found


def _properties(file: Path) -> dict[str, str]:
    return read_properties(file.read_text()) if file.is_file() else {}


def read_properties(text: str) -> dict[str, str]:
    """The lines `name=value` of a Java properties file; lines that begin with # or ! are comments."""
    found = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        name, separator, value = line.strip().partition("=")
        if separator and name and name[0] not in "#!":
            found[name.strip()] = value.strip()
    return found
