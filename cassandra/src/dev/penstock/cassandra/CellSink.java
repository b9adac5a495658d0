package dev.penstock.cassandra;

import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.schema.ColumnMetadata;

/** Takes what a statement wrote in one row, column by column. */
interface CellSink {
    /** A column of one cell: its new value, or its tombstone. */
    void atomic(Cell<?> cell);

    /** A non-frozen collection or UDT: whether it was cleared first, then the elements written and removed. */
    void elements(ColumnMetadata column, boolean cleared, Iterable<Cell<?>> cells);
}
