"""The classes of Debezium's transforms and of ScyllaDB's."""

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

# Debezium's ByLogicalTableRouter: many tables in one topic, their keys told apart by one more field.


NAME = "the transform ByLogicalTableRouter"


def router_problem(values: Values) -> str | None:
    if values["key.field.regex"] and not values["key.field.replacement"]:
        return "key.field.replacement must be non-empty if key.field.regex is set."
    return None


def router_step(values: Values) -> Step:
    def apply(state: State) -> State:
        if not isinstance(state.topic, str):
            raise PenstockError(
                "schemas are named after the topic, which here differs from record to record",
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
    """The same under another name, which has its place before the version."""
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
    """The value in a struct whose only field is `value`, and whose name ends as given."""
    schema = field.schema
    if schema["type"] != "struct" or not str(schema.get("name", "")).endswith(name):
        return field
    if [inner["field"] for inner in schema["fields"]] != ["value"]:
        return field
    return RecordPart(field.payload.getField("value"), plain(schema["fields"][0]))


_LIST_DOC = "member, struct.member, and each with :name for another name than the prefix and its own"
EXTRACT: tuple[Property, ...] = (
    option(
        "delete.tombstone.handling.mode",
        "STRING",
        None,
        "What becomes of deletes. drop: nothing. tombstone: a record with the key and no value. rewrite: the row "
        "before with __deleted = true. rewrite-with-tombstone: that, and the tombstone after it. If it is not set, "
        "delete.handling.mode and drop.tombstones tell.",
        _mode(*MODES),
    ),
    option(
        "delete.handling.mode",
        "STRING",
        "drop",
        "Deprecated; use delete.tombstone.handling.mode. drop: deletes are dropped, which is the default. none: a "
        "record without a value. rewrite: the row before with __deleted = true.",
        _mode(*OLD_MODES),
    ),
    option(
        "drop.tombstones",
        "BOOLEAN",
        True,
        "Deprecated; use delete.tombstone.handling.mode. Whether the tombstones after deletes are dropped. With the "
        "defaults of this and of delete.handling.mode consumers learn of no delete.",
        importance="LOW",
    ),
    option("route.by.field", "STRING", "", "A text column whose value is the topic.", importance="LOW"),
    option("add.fields.prefix", "STRING", "__", "What the names of added fields begin with.", importance="LOW"),
    option("add.fields", "LIST", [], f"Members to add to the row: {_LIST_DOC}.", unwrap.references_problem, "LOW"),
    option("add.headers.prefix", "STRING", "__", "What the names of added headers begin with.", importance="LOW"),
    option("add.headers", "LIST", [], f"Members to add as headers: {_LIST_DOC}.", unwrap.references_problem, "LOW"),
    option(
        "drop.fields.header.name",
        "STRING",
        None,
        "A header that lists fields to drop. No header of these records holds a list, so that none is dropped.",
        importance="LOW",
    ),
    option("drop.fields.from.key", "BOOLEAN", False, "Whether such fields leave the key, too.", importance="LOW"),
    option(
        "drop.fields.keep.schema.compatible",
        "BOOLEAN",
        True,
        "Whether only optional ones of such fields are dropped.",
        importance="LOW",
    ),
)

CLASSES = (
    Transformation(f"{DEBEZIUM}ExtractNewRecordState", EXTRACT, _extract),
    Transformation(
        f"{DEBEZIUM}ByLogicalTableRouter",
        (
            needed("topic.regex", "STRING", "The Java regular expression that the topic matches.", regex.problem),
            needed("topic.replacement", "STRING", "The new topic; $1 is what the first group matched."),
            option("key.enforce.uniqueness", "BOOLEAN", True, "Whether the key tells the table.", importance="LOW"),
            option(
                "key.field.name",
                "STRING",
                "__dbz__physicalTableIdentifier",
                "The field of the key for the table.",
                importance="LOW",
            ),
            option(
                "key.field.regex",
                "STRING",
                None,
                "The Java regular expression that takes the table's identifier out of the old topic.",
                regex.problem,
                "LOW",
            ),
            option("key.field.replacement", "STRING", None, "The identifier; $1 is the first group.", importance="LOW"),
            option(
                "schema.name.adjustment.mode",
                "STRING",
                "none",
                "avro: what Avro forbids in schema names becomes _. none: names are left.",
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
            option("cdc.output.format", "STRING", "legacy", "The format of the events; cells are opened in legacy."),
        ),
        _extract_scylla,
    ),
    Transformation(f"{SCYLLA}ScyllaFlattenColumns", (), _flatten_columns),
)
