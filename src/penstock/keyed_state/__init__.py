"""State by key that windows, tables, joins and segments share: packed by bucket, in Arrow tables."""
