"""Access to ScyllaDB and Cassandra, shared by sources, streams and sinks: connections, tables, values on the wire."""
