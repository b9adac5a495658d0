"""Kafka Connect's own transforms, in a program of their own."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from waiting import PATIENCE

from penstock.connect.java.numbers import narrowed, single
from penstock.connect.records.json_data import _reader
from penstock.connect.records.record import Date
from penstock.local import jars, java

SOURCE = Path(__file__).parent / "KafkaTransforms.java"
DROPPED, UNWRITABLE = "dropped", "unwritable"
"""What becomes of a record; one that JsonConverter does not write cannot be compared."""
PARTITION, OFFSET = 3, 77


class Given(NamedTuple):
    """A record: parts are a schema and a value in JSON."""

    topic: str
    millis: int | None
    key: tuple[Any, Any]
    value: tuple[Any, Any]
    headers: tuple[tuple[str, str], ...] = ()


class Got(NamedTuple):
    """A record after its transforms: parts are a schema and a value."""

    topic: str
    key: tuple[Any, Any]
    value: tuple[Any, Any]
    headers: list[tuple[str, Any]]


class Failed(NamedTuple):
    """Why a record cannot be transformed."""

    reason: str


class Chosen(NamedTuple):
    """A transform and its options, and with a predicate also that."""

    type: str
    options: dict[str, str]
    predicate: tuple[str, dict[str, str]] | None = None
    negate: bool = False


class KafkaTransforms(NamedTuple):
    """The running program."""

    asked: IO[str]
    answers: IO[str]

    def __call__(self, steps: list[Chosen], given: Given) -> Got | Failed | str:
        """The record after these transforms."""
        parts = [{"schema": schema, "payload": payload} for schema, payload in (given.key, given.value)]
        record = {"topic": given.topic, "partition": PARTITION, "offset": OFFSET, "millis": given.millis}
        record |= {"key": parts[0], "value": parts[1], "headers": given.headers}
        self.asked.write(json.dumps({**record, "steps": [_step(one) for one in steps]}) + "\n")
        self.asked.flush()
        answer = json.loads(self.answers.readline())
        if len(answer) == 1:
            ((result, reason),) = answer.items()
            return Failed(reason) if result == "failed" else str(result)
        headers = [(name, _part(part)) for name, part in answer["headers"]]
        return Got(answer["topic"], _part(answer["key"]), _part(answer["value"]), headers)


def _step(one: Chosen) -> dict[str, Any]:
    found: dict[str, Any] = {"type": one.type, "options": one.options}
    if one.predicate:
        name, options = one.predicate
        found |= {"predicate": {"type": name, "options": options}, "negate": one.negate}
    return found


def _part(found: dict[str, Any]) -> tuple[Any, Any]:
    return found["schema"], value_of(found["schema"], found["payload"])


@contextmanager
def kafka_transforms() -> Iterator[KafkaTransforms]:
    path = os.pathsep.join(map(str, [*jars.fetch("kafka-connect"), *jars.fetch("kafka")]))
    own, english = f"{_compiled(path)}{os.pathsep}{path}", ["-Duser.language=en", "-Duser.country=US"]
    command = [str(java.find().bin), *english, "-cp", own, "KafkaTransforms"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as program:
        assert program.stdin and program.stdout
        yield KafkaTransforms(program.stdin, program.stdout)
        program.stdin.close()


def _compiled(path: str) -> Path:
    """The folder of the program's class, compiled once for this source and these jars."""
    version = hashlib.sha256(SOURCE.read_bytes() + path.encode()).hexdigest()[:12]
    folder = jars.cache() / "java" / f"transforms-{version}"
    if not (folder / "KafkaTransforms.class").exists():
        (compiler,) = jars.fetch("compiler")
        command = [java.find().bin, "-jar", compiler, "-17", "-cp", path, "-d", folder, SOURCE]
        subprocess.run(list(map(str, command)), check=True, timeout=PATIENCE)
    return folder


def value_of(schema: Any, payload: Any) -> Any:
    """A value in JSON as a converter reads it, but null stays null."""
    if payload is None or schema is None:
        return payload
    if schema["type"] == "struct":
        return {field["field"]: value_of(field, payload.get(field["field"])) for field in schema["fields"]}
    if schema["type"] == "array":
        return [value_of(schema["items"], one) for one in payload]
    if schema["type"] == "map":
        return {name: value_of(schema["values"], one) for name, one in payload.items()}
    return _reader({name: about for name, about in schema.items() if name != "default"}, 0)(payload)


def same(one: Any, other: Any) -> bool:
    """Whether a value of ours is Kafka's; a 32-bit float without a schema is the double with its value."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and (isinstance(other, float) or other in ("NaN", "Infinity", "-Infinity")):
        number = float(other)
        return one == number or one == single(number) or (math.isnan(one) and math.isnan(number))
    # JsonConverter cuts the days of a date to 32 bits.
    near = narrowed(one, 32) if isinstance(one, Date) else one
    return near == other and type(one) is type(other)
