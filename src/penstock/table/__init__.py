"""Tables over streams: `Table` and `global_table`, and totals over tables: `count`, `aggregate`, `fold`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.table.global_tables import GlobalTable as GlobalTable, global_table as global_table
    from penstock.table.table import (
        Table as Table,
        aggregate as aggregate,
        count as count,
        fold as fold,
        to_stream as to_stream,
    )
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.table.global_tables": ("GlobalTable", "global_table"),
            "penstock.table.table": ("Table", "aggregate", "count", "fold", "to_stream"),
        },
    )
