"""Between Spark columns and the bytes of a record: one module per format; knows no source and no sink."""
