"""Reads the state of queries (windows, tables, counts) from outside, while they run and after they stop."""
