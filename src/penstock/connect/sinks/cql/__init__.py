"""ScyllaDB's and DataStax's sink connectors: records become rows of CQL tables."""
