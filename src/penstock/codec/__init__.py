"""Converts Spark columns to the bytes of records and back, one module per format; depends on no source and no sink."""
