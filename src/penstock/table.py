"""Tables over streams: `Table`, `global_table`, and what is counted over tables: `count`, `aggregate`, `fold`."""

from penstock.stream.globals import GlobalTable, global_table
from penstock.stream.table import Table, aggregate, count, fold, to_stream

__all__ = ["GlobalTable", "Table", "aggregate", "count", "fold", "global_table", "to_stream"]
