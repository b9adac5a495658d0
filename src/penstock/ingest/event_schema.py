"""A topic's JSON schema: compiled once, validates many events at once, and each event if one is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs

from penstock.errors import PenstockError
from penstock.ingest.responses import Problem, shortened

EVENT = "urn:penstock:event"
SMALL = 4096
"""Bytes of an event up to which all of its errors are listed. The library makes all errors of an event or only the
first, and takes about 10 us for each error: an event of 1 MB may have 500 000."""
LARGE = 256 << 10
"""Bytes of an event above which not even the first error is made: with an `anyOf` that took 0.2 s for 1 MB."""
NOT_LISTED = "the event does not satisfy the schema"
"""The reason when the answer already lists enough problems."""
TOO_LARGE_TO_SAY = f"{NOT_LISTED}; what is wrong is listed for events of at most {LARGE} bytes"


@dataclass(frozen=True, slots=True)
class Numbered:
    """A decoded event with its index in the request, and its size in bytes."""

    index: int
    event: Any
    size: int


class Schema:
    """A schema of any draft that the document names, 2020-12 by default; checks formats, and fetches nothing."""

    def __init__(self, document: Any) -> None:
        self.document = document
        options: dict[str, Any] = {"validate_formats": True, "offline": True}
        self._one = jsonschema_rs.validator_for(document, **options)
        registry = jsonschema_rs.Registry([(EVENT, document)], retriever=_not_here)
        many = {"type": "array", "items": {"$ref": EVENT}}
        self._many = jsonschema_rs.validator_for(many, registry=registry, **options)

    def problems(self, events: Sequence[Numbered], most: int) -> list[Problem]:
        """At least one problem for each event that is not valid; about the first `most` say what is wrong."""
        if self._many.is_valid([one.event for one in events]):
            return []
        problems: list[Problem] = []
        for one in events:
            if not self._one.is_valid(one.event):
                problems += self._reasons(one) if len(problems) < most else [Problem(one.index, "", NOT_LISTED)]
        return problems

    def _reasons(self, one: Numbered) -> list[Problem]:
        if one.size <= SMALL:
            return [_problem(one.index, error) for error in self._one.iter_errors(one.event)]
        if one.size > LARGE:
            return [Problem(one.index, "", TOO_LARGE_TO_SAY)]
        try:
            self._one.validate(one.event)
        except jsonschema_rs.ValidationError as error:
            return [_problem(one.index, error)]
        return []


def _problem(index: int, error: jsonschema_rs.ValidationError) -> Problem:
    return Problem(index, shortened(pointer(error.instance_path)), shortened(error.message))


def _not_here(uri: str) -> Any:
    raise ValueError(f"it refers to {uri}, which is not in the file; put it below $defs")


def load(file: Path, topic: str) -> Schema:
    """The schema of a file; raises PenstockError if it cannot be read or is not a JSON schema."""
    where = f"schema of topic {topic}, {file}"
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise PenstockError(f"it cannot be read: {error.strerror}", where=where, next="check the path") from error
    except ValueError as error:
        raise PenstockError(f"it is not valid JSON: {error}", where=where, next="correct the file") from error
    try:
        return Schema(document)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        said = getattr(error, "message", str(error))
        raise PenstockError(f"it is not a valid JSON schema: {said}", where=where, next="correct the file") from error


def pointer(path: Sequence[str | int]) -> str:
    """A path as a JSON pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
