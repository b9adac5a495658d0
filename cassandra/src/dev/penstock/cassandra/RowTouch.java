package dev.penstock.cassandra;

import java.util.BitSet;

import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.schema.ColumnMetadata;

/** What the changes of one group do to one row, as far as its images depend on it. */
final class RowTouch implements CellSink {
    private final LogTable table;
    final BitSet columns = new BitSet();
    boolean isWritten;
    boolean isDeleted;

    RowTouch(LogTable table) {
        this.table = table;
    }

    void add(Delta delta) {
        if (delta.isUpsert() || delta.kind == Delta.Kind.STATIC) {
            isWritten = true;
            delta.cells.feed(this);
        }
        else
            isDeleted = true;
    }

    @Override
    public void atomic(Cell<?> cell) {
        touch(cell.column());
    }

    @Override
    public void elements(ColumnMetadata column, boolean cleared, Iterable<Cell<?>> cells) {
        touch(column);
    }

    private void touch(ColumnMetadata base) {
        LoggedColumn column = table.column(base);
        if (column != null)
            columns.set(column.position);
    }
}
