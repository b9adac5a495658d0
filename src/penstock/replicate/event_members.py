"""The members of decoded events as columns: in each format with the types of JSON's, null where an event lacks them."""

from __future__ import annotations

from pyspark.sql import Column, functions as F, types as st

from penstock.codec.avro import field_name
from penstock.codec.connect_schema import Schema
from penstock.codec.decode_columns import Decoder
from penstock.codec.exact_protobuf import bare_type, unwrapped

PAYLOAD = "payload"
"""The member of a JSON record with its event, beside its schema."""


class EventMembers:
    """The events in the column `record` of what `decoder` has decoded.

    `exact` is the schema of events from Protobuf, whose lists are messages (`exact_protobuf`). With `enveloped`, an
    event is the member `payload` of its record.
    """

    def __init__(self, record: Column, decoder: Decoder, *, exact: Schema | None, enveloped: bool) -> None:
        self._exact_schema = exact
        self._event = record.getField(PAYLOAD) if enveloped else record
        self._schema = decoder.schema[PAYLOAD].dataType if enveloped else decoder.schema

    def type(self, *path: str) -> st.DataType | None:
        """The type of a member of the events; None if they do not have it."""
        decoded, exact = self.decoded_type(*path), self._exact(*path)
        return decoded if decoded is None or exact is None else bare_type(decoded, exact)

    def decoded_type(self, *path: str) -> st.DataType | None:
        """The type of a member as it was decoded; None if the events do not have it."""
        kind = self._schema
        for name in path:
            if not isinstance(kind, st.StructType) or name not in kind.names:
                return None
            kind = kind[name].dataType
        return kind

    def names(self, *path: str) -> set[str]:
        """The names of the members of a member; none if the events do not have it."""
        kind = self.decoded_type(*path)
        return set(kind.names) if isinstance(kind, st.StructType) else set()

    def member(self, *path: str) -> Column:
        """A member of the events; null if they do not have it."""
        decoded, exact = self.decoded_type(*path), self._exact(*path)
        if decoded is None:
            return F.lit(None)
        raw = self._raw(*path)
        return raw if exact is None else unwrapped(raw, decoded, exact)

    def has(self, *path: str) -> Column:
        """Whether an event has a member that is not null."""
        return F.lit(False) if self.decoded_type(*path) is None else self._raw(*path).isNotNull()

    def _exact(self, *path: str) -> Schema | None:
        """The schema of a member of events from Protobuf."""
        schema = self._exact_schema
        for name in path:
            if schema is None:
                return None
            schema = next((member for member in schema["fields"] if field_name(member["field"]) == name), None)
        return schema

    def _raw(self, *path: str) -> Column:
        member = self._event
        for name in path:
            member = member.getField(name)
        return member
