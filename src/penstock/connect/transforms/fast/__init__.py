"""Transforms of sources on columns of Spark: those that have a form which needs no Python per record."""
