"""Tables of ScyllaDB and Apache Cassandra for streams: write, look up rows, use global tables, match identities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.cql.cql_replica import global_table as global_table
    from penstock.cql.cql_sink import CqlSink as CqlSink, sink as sink
    from penstock.cql.matching.id_erase import Erased as Erased, erase as erase
    from penstock.cql.matching.id_match import match as match
    from penstock.cql.matching.id_store import IdStore as IdStore, create as create, ids as ids
    from penstock.cql.row_lookup import lookup as lookup
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.cql.cql_replica": ("global_table",),
            "penstock.cql.cql_sink": ("CqlSink", "sink"),
            "penstock.cql.matching.id_erase": ("Erased", "erase"),
            "penstock.cql.matching.id_match": ("match",),
            "penstock.cql.matching.id_store": ("IdStore", "create", "ids"),
            "penstock.cql.row_lookup": ("lookup",),
        },
    )
