"""Event streaming for ScyllaDB, Apache Cassandra, Kafka and Spark."""

__version__ = "0.1.0.dev0"
