"""Kafka Connect's single message transforms and predicates as Spark expressions, one family a module."""
