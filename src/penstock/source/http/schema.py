"""A topic's JSON schema: compiled once, asked about all events of a request at once, and about each if one is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs

from penstock.errors import PenstockError
from penstock.source.http.answers import Problem

EVENT = "urn:penstock:event"


class Schema:
    """Of any draft that the document names, 2020-12 by default; formats are checked, and nothing is fetched."""

    def __init__(self, document: Any) -> None:
        self.document = document
        options: dict[str, Any] = {"validate_formats": True, "offline": True}
        self._one = jsonschema_rs.validator_for(document, **options)
        registry = jsonschema_rs.Registry([(EVENT, document)], retriever=_not_here)
        many = {"type": "array", "items": {"$ref": EVENT}}
        self._many = jsonschema_rs.validator_for(many, registry=registry, **options)

    def problems(self, events: Sequence[Any]) -> list[Problem]:
        """Everything that is wrong with these decoded events."""
        if self._many.is_valid(events):
            return []
        return [
            Problem(index, pointer(error.instance_path), error.message)
            for index, event in enumerate(events)
            for error in self._one.iter_errors(event)
        ]


def _not_here(uri: str) -> Any:
    raise ValueError(f"it refers to {uri}, which is not in the file; put it below $defs")


def load(file: Path, topic: str) -> Schema:
    """The schema of a file."""
    where = f"schema of topic {topic}, {file}"
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise PenstockError(f"it cannot be read: {error.strerror}", where=where, next="check the path") from error
    except ValueError as error:
        raise PenstockError(f"it is no JSON: {error}", where=where, next="correct the file") from error
    try:
        return Schema(document)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        said = getattr(error, "message", str(error))
        raise PenstockError(f"it is no JSON schema: {said}", where=where, next="correct the file") from error


def pointer(path: Sequence[str | int]) -> str:
    """A place as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
