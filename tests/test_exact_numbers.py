"""No number of a record passes through a float: numbers of 40 digits in everything that reads or shows records.

The first test finds the readers of JSON in the source. One of records calls `codec.exact_json`, or is listed with the
reason why no number is lost there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql import types

from penstock.codec import exact_json
from penstock.connect.java.text import line_of
from penstock.connect.records.deserializers import HEADER, JsonBytes, JsonSchemaBytes
from penstock.connect.records.json_data import of_json
from penstock.connect.records.record import DATA, ConnectRecord, Part
from penstock.connect.sinks.cql.mapping import mapping
from penstock.connect.sinks.cql.topic_codecs import TopicCodec
from penstock.connect.sinks.cql.values import cell
from penstock.connect.sinks.files.formats import JsonLines
from penstock.connect.sinks.jdbc.values import text_of
from penstock.connect.transforms.sink_chain import chain
from penstock.console.reading.masking import Mask
from penstock.database.cql_types import parse_type
from penstock.kafka.record_view import shown
from penstock.postgres.postgres_columns import TargetColumn
from penstock.state.unsafe_rows import shown as shown_state
from penstock.table.json_rows import decoded

SOURCE = Path(__file__).parents[1] / "src" / "penstock"
READERS = re.compile(r"(?<![\w.])json\.loads?\(|json\.decode\(|(?<!\w)Decoder\((?!Protocol)|orjson\.loads\(")
OWN = "files and messages of Penstock itself"
SPARKS = "JSON that Spark writes of its plans, offsets and schemas"
SCHEMAS = "schemas"
CONFIGURATION = "configuration"
ALLOWED = {
    "cdc/ad_hoc.py": OWN,
    "checkpoint/batch_offsets.py": SPARKS,
    "checkpoint/identity.py": OWN,
    "checkpoint/lease.py": OWN,
    "checkpoint/log.py": SPARKS,
    "cli/segment.py": "names of a delivery",
    "codec/avro_value.py": SCHEMAS,
    "codec/decode_avro.py": SCHEMAS,
    "codec/exact_json.py": "the reader itself",
    "codec/registry.py": SCHEMAS,
    "connect/worker/connector_files.py": CONFIGURATION,
    "connect/worker/connector_store.py": OWN,
    "connect/group/division.py": OWN,
    "connect/group/group_work.py": OWN,
    "connect/group/kafka_positions.py": "positions",
    "connect/worker/offsets.py": OWN,
    "connect/worker/only_worker.py": OWN,
    "connect/source/signal_format.py": "signals, whose conditions are strings",
    "connect/source/signal_watch.py": OWN,
    "connect/records/json_data.py": "with the hook of exact_json",
    "connect/sinks/record_sink.py": OWN,
    "connect/sinks/offsets.py": OWN,
    "connect/sinks/cql/contact_points.py": CONFIGURATION,
    "connect/sinks/starts.py": OWN,
    "delta/delta_columns.py": SPARKS,
    "delta/delta_files.py": OWN,
    "delta/delta_table.py": "the least and greatest values of files, of which only their presence counts",
    "extras.py": OWN,
    "ingest/event_schema.py": "checks an event and passes its bytes on",
    "ingest/events.py": "checks an event and passes its bytes on",
    "ingest/pixel.py": "checks an event and passes its text on",
    "ingest/spool_files.py": OWN,
    "kafka/kafka_settings.py": OWN,
    "kafka/record_view.py": "asks whether a text is JSON and shows the text",
    "keyed_state/description.py": OWN,
    "local/start.py": OWN,
    "query/markers.py": OWN,
    "query/packed_rows.py": SPARKS,
    "query/real_time.py": SPARKS,
    "replicate/applied_changes.py": OWN,
    "replicate/hidden_state.py": "times of fragments",
    "run/checkpoint.py": OWN,
    "run/positions.py": SPARKS,
    "run/supervise.py": SPARKS,
    "segment/processor.py": OWN,
    "serve/json_bodies.py": "requests of the REST API",
    "spark_runtime/running_query.py": SPARKS,
    "spark_runtime/worker_waits.py": OWN,
    "state/store_files.py": SPARKS,
    "state/store_rows.py": SPARKS,
    "state/stores.py": SPARKS,
    "state/unsafe_rows.py": SPARKS,
    "serve/http_client.py": "numbers of other programs about themselves",
    "console/reading/run_polling.py": "numbers of other programs about themselves",
    "console/reading/reader_program.py": OWN,
    "watch/graph.py": SPARKS,
    "watch/lineage.py": SPARKS,
    "watch/run_files.py": OWN,
    "watch/served_app.py": OWN,
    "watch/source_lag.py": SPARKS,
}


def test_who_reads_json_in_another_way_says_why_no_number_of_a_record_is_lost() -> None:
    texts = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    found = {name for name, text in texts.items() if READERS.search(text)}
    assert sorted(found - set(ALLOWED)) == [], "read records with codec.exact_json, or list the module with a reason"
    assert sorted(set(ALLOWED) - found) == [], "these read no JSON any more"


NUMBERS = st.from_regex(r"-?[1-9][0-9]{0,39}\.[0-9]{1,40}", fullmatch=True)
PLAIN = TopicCodec("en_US", "UTC", "CQL_TIMESTAMP", "ISO_LOCAL_DATE", "ISO_LOCAL_TIME", 1)


def column(kind: str) -> TargetColumn:
    return TargetColumn("c", kind, kind, kind, required=False, generated=False)


def text_column(value: bytes) -> str:
    """The value of a field that a global table has as a string; the time of the other one is read the slow way."""
    schema = pa.schema([("n", pa.string()), ("t", pa.timestamp("us", "UTC"))])
    rows, good = decoded(pa.array([b'{"n":%s,"t":1}' % value], pa.binary()), schema, "seconds")
    assert good.all()
    return str(rows["n"][0])


def record(value: Part, *headers: tuple[str, Part]) -> ConnectRecord:
    return ConnectRecord("t", 0, 0, 1, Part(None, None), value, headers)


def transformed(data: bytes, config: dict[str, str]) -> Any:
    options = {f"transforms.x.{name}": value for name, value in config.items()}
    found = chain({"transforms": "x", **options}).start()(record(of_json(data, enveloped=False)))
    assert found is not None
    return found.value.value


KAFKA = "org.apache.kafka.connect.transforms"
DECIMAL = b'{"type":"bytes","name":"%sDecimal","parameters":{"scale":"2"},"optional":true' % DATA.encode()


def enveloped(payload: bytes, *, default: bytes = b"", compact: bool = True) -> Part:
    schema = DECIMAL + (b',"default":%s}' % default if default else b"}")
    text = b'{"schema":%s,"payload":%s}' % (schema, payload)
    return JsonBytes(True)(text if compact else text.replace(b":", b" : "))


def of_cell(data: bytes | None) -> Decimal:
    assert data is not None
    scale, number = (int.from_bytes(part, "big", signed=True) for part in (data[:4], data[4:]))
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


DECIMALS = parse_type("decimal", {})
LISTS = parse_type("list<decimal>", {})
READS: dict[str, Callable[[bytes], Any]] = {
    "JsonConverter": lambda n: JsonBytes(False)(n).value,
    "JsonConverter, in an object": lambda n: JsonBytes(False)(b'{"a":[%s]}' % n).value["a"][0],
    "JsonConverter with schemas": lambda n: enveloped(n).value,
    "JsonConverter with schemas, in another form": lambda n: enveloped(n, compact=False).value,
    "JsonConverter, a default": lambda n: enveloped(b"null", default=n).value,
    "JsonSchemaConverter": lambda n: JsonSchemaBytes()(b"\0\0\0\0\1[%s]" % n).value[0],
    "SimpleHeaderConverter": lambda n: HEADER(b'{"a":%s}' % n).value["a"],
    "a mapping of text": lambda n: mapping("c=value.a")["c"].of(record(Part(None, f'{{"a":{n.decode()}}}'))),
    "a column decimal": lambda n: of_cell(cell(DECIMALS, of_json(n, enveloped=False).value)),
    "a column decimal, of text": lambda n: of_cell(cell(DECIMALS, n.decode())),
    "text of a list": lambda n: of_cell((cell(LISTS, f"[{n.decode()}]") or b"")[8:]),
    "a codec, text of a list": lambda n: PLAIN.value(LISTS, f"[{n.decode()}]", typed=False)[0],
    "a codec, an object as text": lambda n: PLAIN.value(
        parse_type("text", {}), JsonBytes(False)(b"[%s]" % n).value, typed=False
    )[1:-1],
    "PostgreSQL, numeric": lambda n: text_of(column("numeric"), JsonBytes(False)(n).value, UTC),
    "PostgreSQL, jsonb": lambda n: (text_of(column("jsonb"), JsonBytes(False)(b"[%s]" % n).value, UTC) or "")[1:-1],
    "ReplaceField": lambda n: transformed(b'{"a":%s}' % n, {"type": f"{KAFKA}.ReplaceField$Value", "renames": "a:b"})[
        "b"
    ],
    "Cast to string": lambda n: transformed(b'{"a":%s}' % n, {"type": f"{KAFKA}.Cast$Value", "spec": "a:string"})["a"],
    "files of JSON": lambda n: lines_of(JsonBytes(False)(b"[%s]" % n))[1:-1],
    "files of JSON, of a decimal": lambda n: lines_of(enveloped(n)),
    "lines of FileStreamSink": lambda n: line_of(JsonBytes(False)(b"[%s]" % n))[1:-1].decode(),
    "the console's messages": lambda n: json.loads(str(shown(b'{"a":%s}' % n).text), parse_float=Decimal)["a"],
    "the console's masked messages": lambda n: masked(n),
    "a string column of a global table": text_column,
    "rows of a state": lambda n: exact_json.dumps(shown_state(Decimal(n.decode()), types.DecimalType(38, 20))),
}


def lines_of(part: Part) -> str:
    lines = JsonLines(True)
    lines.add(part)
    return lines.data().decode().strip()


def masked(n: bytes) -> Decimal:
    text = Mask(["secret"]).text(f'{{"secret":1,"a":{n.decode()}}}', "json")
    found: Decimal = json.loads(text, parse_float=Decimal)["a"]
    return found


DOUBLES = ("Cast to string", "lines of FileStreamSink", "a string column of a global table")
"""Where a number that a double holds is written as Java and Spark write this double: 0.10 as 0.1."""


@pytest.mark.parametrize("where", READS)
@given(text=NUMBERS)
@settings(max_examples=15, deadline=None)
def test_a_number_of_40_digits_has_all_of_them(where: str, text: str) -> None:
    found = READS[where](text.encode())
    assert Decimal(str(found)) == Decimal(text)
    if where not in DOUBLES:
        assert Decimal(str(found)).as_tuple() == Decimal(text).as_tuple()
