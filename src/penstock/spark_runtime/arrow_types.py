"""Arrow's types of Spark's types, and back, as PySpark converts them; its own module for them is not public."""

from __future__ import annotations

from pyspark.sql.pandas.types import (
    from_arrow_schema as from_arrow_schema,
    to_arrow_schema as to_arrow_schema,
    to_arrow_type as to_arrow_type,
)
