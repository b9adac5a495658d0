"""The events of an Arrow batch by their identities, in whole columns: which need the rules, whose the others are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.native import Array
from penstock.stream.match_store import Identity

UNSEEN, NOBODY = -1, -2
"""Numbers of what is no person: an identity that nothing is known of, and one that is known to have none."""
SEPARATOR = b"\0"


@dataclass(frozen=True)
class Events:
    """The events of an Arrow batch: their distinct identities, and in each row the places of its own (-1: none).

    An identity is the kind, a zero byte and the value. Persons are given for each identity: the empty name for one that
    has none, null where nothing is known.
    """

    identities: pa.Array
    codes: Array

    @classmethod
    def of(cls, kinds: Sequence[str], columns: Sequence[pa.Array]) -> Events:
        identities: list[pa.Array] = []
        codes, known = [], 0
        for kind, column in zip(kinds, columns, strict=True):
            coded = column.dictionary_encode()
            found = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            codes.append(np.where(found < 0, -1, found + known))
            values = coded.dictionary.cast(pa.binary())
            identities.append(pc.binary_join_element_wise(kind.encode(), values, SEPARATOR))
            known += len(values)
        return cls(pa.concat_arrays(identities), np.column_stack(codes))

    def identity(self, place: int) -> Identity:
        kind, _, value = self.identities[place].as_py().decode().partition("\0")
        return kind, value

    def unsettled(self, persons: pa.Array) -> Array:
        """The events with an identity that nothing is known of, or with those of two persons."""
        of_event = _numbered(persons)[self.codes]
        none = (self.codes < 0) | (of_event == NOBODY)
        low = np.where(none, np.iinfo(np.int64).max, of_event).min(axis=1)
        high = np.where(none, -1, of_event).max(axis=1)
        cold: Array = (of_event == UNSEEN).any(axis=1, where=~none) | ((high >= 0) & (low != high))
        return cold

    def persons(self, persons: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The distinct persons of the events in order, and for each event the place of its own among them."""
        names = pc.unique(persons.filter(pc.greater(pc.binary_length(persons), 0)))
        names = names.take(pc.sort_indices(names))
        ranks = pc.index_in(persons, names).fill_null(len(names)).to_numpy(zero_copy_only=False)
        rank = np.append(ranks, len(names))[self.codes].min(axis=1)
        return pa.array(rank, mask=rank == len(names)), names


def _numbered(persons: pa.Array) -> Array:
    """A number for each person, the same for the same; one more behind the last, for the place -1."""
    coded = persons.dictionary_encode()
    numbers = coded.indices.fill_null(UNSEEN).to_numpy(zero_copy_only=False).astype(np.int64)
    nobody = coded.dictionary.index(b"").as_py()
    return np.append(np.where((numbers == nobody) & (numbers >= 0), NOBODY, numbers), NOBODY)
