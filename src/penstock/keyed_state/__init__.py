"""Keyed state for windows, tables, joins and segments: packed by bucket, in Arrow tables."""
