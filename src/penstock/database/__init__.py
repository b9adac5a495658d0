"""ScyllaDB and Cassandra as sources, streams and sinks share them: connections, tables, values on the wire."""
