"""Single message transforms of Kafka Connect, Debezium and ScyllaDB, on the records of sinks, one by one."""
