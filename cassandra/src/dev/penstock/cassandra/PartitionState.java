package dev.penstock.cassandra;

import java.util.BitSet;
import java.util.NavigableMap;
import java.util.TreeMap;

import org.apache.cassandra.db.Clustering;
import org.apache.cassandra.db.rows.Row;

/** The rows of a partition that a request touches: as read before it, then rolled forward change by change. */
final class PartitionState {
    private final LogTable table;
    private final NavigableMap<Clustering<?>, RowState> rows;
    private RowState statics;
    private boolean hasStatics;

    PartitionState(LogTable table) {
        this.table = table;
        this.rows = new TreeMap<>(table.base.comparator);
        this.statics = new RowState(table, table.statics.length);
    }

    void loadRow(Row row, BitSet wanted) {
        RowState state = newRow(row.clustering());
        state.load(CellSource.of(row), wanted);
        rows.put(row.clustering(), state);
    }

    void loadStatics(Row row, BitSet wanted) {
        statics.load(CellSource.of(row), wanted);
        for (LoggedColumn column : table.statics)
            hasStatics |= statics.hasValue(column);
    }

    private RowState newRow(Clustering<?> clustering) {
        return new RowState(table, table.regulars.length);
    }

    /** The row, or null if it does not exist. */
    RowState row(Clustering<?> clustering) {
        return rows.get(clustering);
    }

    /** The static row, or null if it has no value and was not written yet. */
    RowState statics() {
        return hasStatics ? statics : null;
    }

    void apply(Delta delta) {
        switch (delta.kind) {
            case STATIC:
                hasStatics = true;
                delta.cells.feed(statics);
                break;
            case ROW_DELETE:
                rows.remove(delta.clustering);
                break;
            case RANGE_DELETE:
                rows.keySet().removeIf(row -> delta.range.covers(row, table.base.comparator));
                break;
            case PARTITION_DELETE:
                rows.clear();
                statics = new RowState(table, table.statics.length);
                hasStatics = false;
                break;
            default:
                delta.cells.feed(rows.computeIfAbsent(delta.clustering, this::newRow));
        }
    }
}
