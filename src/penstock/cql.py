"""Tables of ScyllaDB and Apache Cassandra for streams: write, look rows up, hold a table whole, match identities."""

from penstock.replicas.cql import global_table
from penstock.sink.cql import CqlSink, sink
from penstock.stream.erase import Erased, erase
from penstock.stream.lookup import lookup
from penstock.stream.match_frame import match
from penstock.stream.match_store import IdStore, create, ids

__all__ = ["CqlSink", "Erased", "IdStore", "create", "erase", "global_table", "ids", "lookup", "match", "sink"]
