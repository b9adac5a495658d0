"""Builds change frames with the columns and metadata of `cdc.read`, without a database."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession, types as st

from penstock.database.cql_types import CqlType, log_value_type, parse_type, spark_type

AT = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=dt.UTC)
READ_AT = AT + dt.timedelta(milliseconds=1077)
INSERT, UPDATE, ROW_DELETE, PARTITION_DELETE, RANGE_DELETE = ("c", 2), ("u", 1), ("d", 3), ("d", 4), ("d", 5)
SNAPSHOT = ("r", None)


@dataclass(frozen=True)
class Table:
    """A table as the metadata of its change frame describes it."""

    columns: Mapping[str, str]
    partition_key: Sequence[str]
    clustering_key: Sequence[str] = ()
    udts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    name: str = "shop.orders"
    descending: Sequence[str] = ()

    def frame(self, spark: SparkSession, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
        """A frame with one change per mapping: `kind` (see above), `key`, and other columns, with structs as tuples."""
        values = [
            (
                row["kind"][0],
                row["key"],
                row.get("before"),
                row.get("after"),
                row.get("delta"),
                row.get("written", []),
                row.get("deleted", []),
                self._range(row),
                row["kind"][1],
                AT,
                READ_AT,
            )
            for row in rows
        ]
        absent = [] if self.clustering_key else ["range"]
        absent += [] if self._values else ["delta"]
        return spark.createDataFrame(values, self._schema()).drop(*absent)

    def _range(self, row: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """The bounds, and with several columns their order, which encoders take from the table."""
        bounds: tuple[Any, ...] | None = row.get("range")
        return bounds if bounds is None or len(self.clustering_key) == 1 else (*bounds, None)

    @property
    def _values(self) -> list[str]:
        return sorted(set(self.columns) - {*self.partition_key, *self.clustering_key})

    def _schema(self) -> st.StructType:
        about = {
            "penstock.table": self.name,
            "penstock.partition_key": list(self.partition_key),
            "penstock.clustering_key": list(self.clustering_key),
            "penstock.descending": list(self.descending),
            "penstock.cql": dict(self.columns),
            "penstock.udts": {name: dict(fields) for name, fields in self.udts.items()},
        }
        row, bound = self._struct(sorted(self.columns)), self._struct(self.clustering_key)
        delta = [st.StructField(name, spark_type(log_value_type(self._kind(name)))) for name in self._values]
        names, inclusive = st.ArrayType(st.StringType()), st.BooleanType()
        bounds: list[tuple[str, st.DataType]] = [("start", bound), ("start_inclusive", inclusive)]
        bounds += [("end", bound), ("end_inclusive", inclusive)]
        bounds += [("order", names)] if len(self.clustering_key) > 1 else []
        return st.StructType(
            [
                st.StructField("op", st.StringType()),
                st.StructField("key", self._struct([*self.partition_key, *self.clustering_key]), metadata=about),
                st.StructField("before", row),
                st.StructField("after", row),
                st.StructField("delta", st.StructType(delta)),
                st.StructField("written", names),
                st.StructField("deleted", names),
                st.StructField("range", st.StructType([st.StructField(name, kind) for name, kind in bounds])),
                st.StructField("operation", st.ByteType()),
                st.StructField("ts", st.TimestampType()),
                st.StructField("read_ts", st.TimestampType()),
            ]
        )

    def _struct(self, names: Sequence[str]) -> st.StructType:
        return st.StructType([st.StructField(name, spark_type(self._kind(name))) for name in names])

    def _kind(self, column: str) -> CqlType:
        udts = {name: (tuple(fields), tuple(fields.values())) for name, fields in self.udts.items()}
        return parse_type(self.columns[column], udts)
