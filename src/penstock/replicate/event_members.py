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
        given, exact = self.given(*path), self._exact(*path)
        return given if given is None or exact is None else bare_type(given, exact)

    def given(self, *path: str) -> st.DataType | None:
        """The type of a member as it was decoded; None if the events do not have it."""
        kind = self._schema
        for name in path:
            if not isinstance(kind, st.StructType) or name not in kind.names:
                return None
            kind = kind[name].dataType
        return kind

    def names(self, *path: str) -> set[str]:
        """The names of the members of a member; none if the events do not have it."""
        kind = self.given(*path)
        return set(kind.names) if isinstance(kind, st.StructType) else set()

    def member(self, *path: str) -> Column:
        """A member of the events; null if they do not have it."""
        given, exact = self.given(*path), self._exact(*path)
        if given is None:
            return F.lit(None)
        found = self._raw(*path)
        return found if exact is None else unwrapped(found, given, exact)

    def has(self, *path: str) -> Column:
        """Whether an event has a member that is not null."""
        return F.lit(False) if self.given(*path) is None else self._raw(*path).isNotNull()

    def _exact(self, *path: str) -> Schema | None:
        """The schema of a member of events from Protobuf."""
        found = self._exact_schema
        for name in path:
            if found is None:
                return None
            found = next((one for one in found["fields"] if field_name(one["field"]) == name), None)
        return found

    def _raw(self, *path: str) -> Column:
        found = self._event
        for name in path:
            found = found.getField(name)
        return found
