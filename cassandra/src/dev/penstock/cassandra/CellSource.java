package dev.penstock.cassandra;

import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.db.rows.ColumnData;
import org.apache.cassandra.db.rows.ComplexColumnData;
import org.apache.cassandra.db.rows.Row;

/** What a statement wrote in one row. */
interface CellSource {
    CellSource NONE = sink -> {};

    void feed(CellSink sink);

    /** Everything in a row of the node. */
    static CellSource of(Row row) {
        return row.columnCount() == 0 ? NONE : sink -> {
            for (ColumnData data : row) {
                if (data instanceof Cell)
                    sink.atomic((Cell<?>) data);
                else
                    feed((ComplexColumnData) data, sink);
            }
        };
    }

    private static void feed(ComplexColumnData data, CellSink sink) {
        sink.elements(data.column(), !data.complexDeletion().isLive(), data);
    }
}
