"""The transform classes of Debezium and of ScyllaDB."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import functions as F

from penstock.codec.connect_schema import avro_name
from penstock.codec.typed_records import RecordPart
from penstock.connect.definition import Check, Property
from penstock.connect.transforms import regex, unwrap
from penstock.connect.transforms.state import State, Step, Transformation, Values, needed, option
from penstock.connect.transforms.struct_edits import fields, plain, rebuilt
from penstock.connect.transforms.unwrap import is_event, settings, unwrapped
from penstock.errors import PenstockError

# Debezium's ByLogicalTableRouter: several tables in one topic, with another key field for the table.


NAME = "the transform ByLogicalTableRouter"


def router_problem(values: Values) -> str | None:
    if values["key.field.regex"] and not values["key.field.replacement"]:
        return "key.field.replacement must be non-empty if key.field.regex is set."
    return None


def router_step(values: Values) -> Step:
    def apply(state: State) -> State:
        if not isinstance(state.topic, str):
            raise PenstockError(
                "schemas are named after the topic, and the topic differs from record to record",
                where=NAME,
                next="put it before the transform that routes by a field or a time",
            )
        if not regex.matches(state, values["topic.regex"]):
            return state
        topic = regex.replaced(state, values["topic.regex"], values["topic.replacement"])
        if not topic:
            return state
        return _moved(state, str(topic), values)

    return apply


def _moved(state: State, topic: str, values: Values) -> State:
    identifier = state.topic
    if values["key.field.regex"]:
        identifier = regex.replaced(state, values["key.field.regex"], values["key.field.replacement"])

    def name(suffix: str) -> str:
        full = f"{topic}.{suffix}"
        return avro_name(full) if values["schema.name.adjustment.mode"].lower() == "avro" else full

    def key(part: RecordPart) -> RecordPart:
        members = fields(part, NAME)
        listed = list(members.items())
        if values["key.enforce.uniqueness"]:
            field = RecordPart(F.lit(identifier), {"type": "string", "optional": False})
            listed.append((values["key.field.name"], field))
        return _renamed(rebuilt(part, listed, optional=part.schema["optional"]), name("Key"))

    def value(part: RecordPart) -> RecordPart:
        if not is_event(part):
            return part
        members = fields(part, NAME)
        for image in {"before", "after"} & members.keys():
            members[image] = _renamed(members[image], name("Value"))
        return _renamed(rebuilt(part, members.items(), optional=part.schema["optional"]), name("Envelope"))

    return replace(state.each("key", key).each("value", value), topic=topic)


def _renamed(part: RecordPart, name: str) -> RecordPart:
    """The same part with another schema name, which comes before the version."""
    schema = {key: value for key, value in part.schema.items() if key not in ("name", "version", "parameters")}
    rest = {key: part.schema[key] for key in ("version", "parameters") if key in part.schema}
    return RecordPart(part.payload, schema | {"name": name} | rest)


DEBEZIUM = "io.debezium.transforms."
SCYLLA = "com.scylladb.cdc.debezium.connector.transforms."
MODES = ("drop", "tombstone", "rewrite", "rewrite-with-tombstone")
OLD_MODES = ("drop", "rewrite", "none")


def _mode(*allowed: str) -> Check:
    return lambda mode: None if mode.lower() in allowed else f"Value must be one of {', '.join(allowed)}"


def _extract(values: Values) -> Step:
    chosen = settings(values)
    return lambda state: unwrapped(state, chosen)


def _extract_scylla(values: Values) -> Step:
    extract = _extract(values)
    if values["cdc.output.format"].lower() == "advanced":
        return extract

    def apply(state: State) -> State | None:
        rows = extract(state)
        return rows and rows.each("value", _without_cells)

    return apply


def _without_cells(row: RecordPart) -> RecordPart:
    if row.schema["type"] != "struct" or is_event(row):
        return row
    return rebuilt(row, ((name, _opened(field, ".Cell")) for name, field in fields(row, "").items()))


def _flatten_columns(values: Values) -> Step:
    return lambda state: state.each("value", _flat)


def _flat(event: RecordPart) -> RecordPart:
    if event.schema["type"] != "struct":
        return event
    return rebuilt(
        event,
        (
            (name, _flat_row(member) if name in ("before", "after") else member)
            for name, member in fields(event, "").items()
        ),
    )


def _flat_row(row: RecordPart) -> RecordPart:
    members = ((name, _opened(field, "")) for name, field in fields(row, "the transform ScyllaFlattenColumns").items())
    return rebuilt(row, members, optional=row.schema["optional"])


def _opened(field: RecordPart, name: str) -> RecordPart:
    """The value of a struct with `value` as its only field and a name that ends with `name`; else the field itself."""
    schema = field.schema
    if schema["type"] != "struct" or not str(schema.get("name", "")).endswith(name):
        return field
    if [inner["field"] for inner in schema["fields"]] != ["value"]:
        return field
    return RecordPart(field.payload.getField("value"), plain(schema["fields"][0]))


_LIST_DOC = "field or struct.field, each with an optional :name that replaces its name after the prefix"
EXTRACT: tuple[Property, ...] = (
    option(
        "delete.tombstone.handling.mode",
        "STRING",
        None,
        "How deletes are handled. drop: they are dropped. tombstone: a record with the key and no value. rewrite: the "
        "row before with __deleted = true. rewrite-with-tombstone: that row, then a tombstone. If not set, "
        "delete.handling.mode and drop.tombstones apply.",
        _mode(*MODES),
    ),
    option(
        "delete.handling.mode",
        "STRING",
        "drop",
        "Deprecated; use delete.tombstone.handling.mode. drop (default): deletes are dropped. none: a record without "
        "a value. rewrite: the row before with __deleted = true.",
        _mode(*OLD_MODES),
    ),
    option(
        "drop.tombstones",
        "BOOLEAN",
        True,
        "Deprecated; use delete.tombstone.handling.mode. Drop the tombstones after deletes. With the defaults of this "
        "and of delete.handling.mode consumers see no deletes.",
        importance="LOW",
    ),
    option("route.by.field", "STRING", "", "A string column with the topic's name.", importance="LOW"),
    option("add.fields.prefix", "STRING", "__", "Prefix of the names of added fields.", importance="LOW"),
    option("add.fields", "LIST", [], f"Fields to add to the row: {_LIST_DOC}.", unwrap.references_problem, "LOW"),
    option("add.headers.prefix", "STRING", "__", "Prefix of the names of added headers.", importance="LOW"),
    option("add.headers", "LIST", [], f"Fields to add as headers: {_LIST_DOC}.", unwrap.references_problem, "LOW"),
    option(
        "drop.fields.header.name",
        "STRING",
        None,
        "A header that lists fields to drop. No header of these records contains a list, so no field is dropped.",
        importance="LOW",
    ),
    option("drop.fields.from.key", "BOOLEAN", False, "Drop these fields from the key, too.", importance="LOW"),
    option(
        "drop.fields.keep.schema.compatible",
        "BOOLEAN",
        True,
        "Drop only optional ones of these fields.",
        importance="LOW",
    ),
)

CLASSES = (
    Transformation(f"{DEBEZIUM}ExtractNewRecordState", EXTRACT, _extract),
    Transformation(
        f"{DEBEZIUM}ByLogicalTableRouter",
        (
            needed("topic.regex", "STRING", "A Java regular expression that matches the topic.", regex.problem),
            needed("topic.replacement", "STRING", "The new topic; $1 is the match of the first group."),
            option(
                "key.enforce.uniqueness", "BOOLEAN", True, "Add a field for the table to the key.", importance="LOW"
            ),
            option(
                "key.field.name",
                "STRING",
                "__dbz__physicalTableIdentifier",
                "The key field for the table.",
                importance="LOW",
            ),
            option(
                "key.field.regex",
                "STRING",
                None,
                "A Java regular expression that extracts the table's identifier from the old topic.",
                regex.problem,
                "LOW",
            ),
            option("key.field.replacement", "STRING", None, "The identifier; $1 is the first group.", importance="LOW"),
            option(
                "schema.name.adjustment.mode",
                "STRING",
                "none",
                "avro: replaces characters that Avro forbids in schema names by _. none: keeps names.",
                _mode("none", "avro"),
                "LOW",
            ),
            option("logical.table.cache.size", "INT", 16, "Without effect: nothing is cached.", importance="LOW"),
        ),
        router_step,
        router_problem,
    ),
    Transformation(
        f"{SCYLLA}ScyllaExtractNewRecordState",
        (
            *EXTRACT,
            option("cdc.output.format", "STRING", "legacy", "The format of the events; legacy: cells become values."),
        ),
        _extract_scylla,
    ),
    Transformation(f"{SCYLLA}ScyllaFlattenColumns", (), _flatten_columns),
)
