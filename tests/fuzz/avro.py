"""Avro records in the decoder that Spark's `from_avro` uses, with Penstock's limits, compared with fastavro.

The decoder is Java's, in its own JVM with 128 MB: an input that fills the heap fails here. An input is the record's
bytes, without the frame of a schema registry. In Spark, any exception of the decoder becomes a problem, but errors of
the virtual machine (memory, stack) end the query, so they must not occur. If both decoders read a record, the values
must be equal; fastavro refuses some records that Java reads (strings that are not UTF-8).
"""

from __future__ import annotations

import io
import json
import math
import random as randoms
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from penstock.spark_runtime.avro_limits import LIMITS

from .mutate import mutated, noise
from .runner import Decoder, Difference

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "n", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": "double"},
        {"name": "share", "type": "float"},
        {"name": "raw", "type": "bytes"},
        {"name": "counts", "type": {"type": "array", "items": "long"}},
        {"name": "nulls", "type": {"type": "array", "items": "null"}},
        {"name": "names", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "fixed", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {
            "name": "many",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Inner", "fields": [{"name": "deep", "type": ["null", "int"]}]},
            },
        },
        {"name": "ok", "type": "boolean"},
    ],
}
PARSED = fastavro.parse_schema(SCHEMA)
JARS = Path(pyspark.__file__).parent / "jars"
MOST = 100_000
"""The number of characters from which a record is not compared."""
LEAST = b"\xff" * 9 + b"\x01"
"""-2^63. As the item count of a block it must be negated, which overflows: Java then ends the array, and fastavro
continues."""
FATAL = ("java.lang.OutOfMemoryError", "java.lang.StackOverflowError")


@cache
def _java() -> tuple[Any, Any]:
    """Start a JVM with Avro; returns its gateway and a reader of the schema."""
    jars = [str(jar) for pattern in ("avro-1*", "jackson-*", "slf4j-api*") for jar in JARS.glob(f"{pattern}.jar")]
    options = ["-Xmx128m", "-XX:+UseSerialGC", *(f"-D{name}={most}" for name, most in LIMITS.items())]
    port, secret = launch_gateway(
        classpath=":".join(jars),
        javaopts=options,
        die_on_exit=True,
        enable_auth=True,
        redirect_stdout=None,
        redirect_stderr=None,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret, auto_convert=False))
    schema = gateway.jvm.org.apache.avro.Schema.Parser().parse(json.dumps(SCHEMA))
    return gateway, gateway.jvm.org.apache.avro.generic.GenericDatumReader(schema)


def _event(random: randoms.Random) -> bytes:
    out = io.BytesIO()
    event = {
        "id": random.choice((0, 1, -1, 2**31 - 1)),
        "n": random.choice((0, -(2**63), 2**63 - 1)),
        "name": random.choice((None, "", "a", "ü" * 5)),
        "price": random.choice((0.0, 1.5, -1e300, math.inf)),
        "share": random.choice((0.0, 0.25)),
        "raw": noise(random, 20),
        "counts": [random.randrange(-5, 5) for _ in range(random.randrange(4))],
        "nulls": [None] * random.randrange(4),
        "names": {f"k{n}": random.choice((None, "v")) for n in range(random.randrange(3))},
        "kind": random.choice("AB"),
        "fixed": random.randbytes(4),
        "many": [{"deep": random.choice((None, 7))} for _ in range(random.randrange(3))],
        "ok": random.random() < 0.5,
    }
    fastavro.schemaless_writer(out, PARSED, event)
    return out.getvalue()


def _draw(random: randoms.Random) -> bytes:
    record = _event(random)
    return mutated(random, record) if random.random() < 0.7 else record


def _number(value: float, width: type[np.floating[Any]]) -> Any:
    return "NaN" if math.isnan(value) else width(value).tobytes()


def _of_java(text: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(text, strict=False)
    raw, fixed = event["raw"].encode("latin-1"), bytes(byte % 256 for byte in event["fixed"])
    price, share = _number(float(event["price"]), np.float64), _number(float(event["share"]), np.float32)
    return event | {"raw": raw, "fixed": fixed, "price": price, "share": share}


def _of_fastavro(event: dict[str, Any], ok: bool) -> dict[str, Any]:
    # A byte above 1 is not a valid boolean; fastavro reads true, and Java false.
    price, share = _number(event["price"], np.float64), _number(event["share"], np.float32)
    return event | {"price": price, "share": share, "ok": event["ok"] and ok}


def _read_by_java(data: bytes) -> str | None:
    """The record in JSON; None if the decoder refuses it."""
    gateway, reader = _java()
    decoder = gateway.jvm.org.apache.avro.io.DecoderFactory.get().binaryDecoder(data, None)
    try:
        text: str = reader.read(None, decoder).toString()
    except Py4JJavaError as error:
        kind = error.java_exception.getClass().getName()
        if kind in FATAL:
            raise Difference(f"{kind} ends the query") from error
        return None
    return text


def _read_by_fastavro(data: bytes) -> dict[str, Any] | None:
    try:
        found = fastavro.schemaless_reader(io.BytesIO(data), PARSED, None)
    except (EOFError, ValueError, IndexError, OverflowError):
        return None
    assert isinstance(found, dict)
    # An int of more than 32 bits is not valid; fastavro reads it, and Java reads its lower bits.
    wholes = [found["id"], *(inner["deep"] or 0 for inner in found["many"])]
    return found if all(-(2**31) <= whole < 2**31 for whole in wholes) else None


def _check(data: bytes) -> bool:
    text = _read_by_java(data)
    if text is None:
        return False
    # A million nulls take three bytes, but comparing them takes seconds.
    peer = _read_by_fastavro(data) if len(text) < MOST else None
    if peer is not None and data.count(LEAST) <= (peer["n"] == -(2**63)):
        found = _of_java(text)
        if found != _of_fastavro(peer, found["ok"]):
            raise Difference(f"{text} and {peer}")
    return True


DECODER = Decoder(name="avro", draw=_draw, check=_check)
