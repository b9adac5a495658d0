"""Confluent's JDBC sink connector for PostgreSQL: records become rows."""
