package dev.penstock.cassandra;

import java.util.ArrayList;
import java.util.List;
import java.util.NavigableMap;
import java.util.TreeMap;

import org.apache.cassandra.db.Clustering;

/** The rows of one group that can have images. */
final class GroupTouch {
    final NavigableMap<Clustering<?>, RowTouch> rows;
    /** Null when the group does not write the static row. */
    RowTouch statics;
    private final LogTable table;
    private final List<RangeChange> ranges = new ArrayList<>(0);
    private boolean isPartitionDeleted;

    GroupTouch(LogTable table, Group group) {
        this.table = table;
        this.rows = new TreeMap<>(table.base.comparator);
        group.deltas.forEach(this::add);
    }

    private void add(Delta delta) {
        switch (delta.kind) {
            case STATIC:
                if (statics == null)
                    statics = new RowTouch(table);
                statics.add(delta);
                break;
            case RANGE_DELETE:
                ranges.add(delta.range);
                break;
            case PARTITION_DELETE:
                isPartitionDeleted = true;
                deleteOnlyRow(delta);
                break;
            default:
                row(delta.clustering).add(delta);
        }
    }

    /** Without clustering columns a partition is one row, and deleting it has a preimage. */
    private void deleteOnlyRow(Delta delta) {
        if (table.base.isStaticCompactTable()) {
            if (statics == null)
                statics = new RowTouch(table);
            statics.add(delta);
        }
        else if (!table.hasClustering())
            row(Clustering.EMPTY).add(delta);
    }

    private RowTouch row(Clustering<?> clustering) {
        return rows.computeIfAbsent(clustering, c -> new RowTouch(table));
    }

    /** Whether the row is there after the group: written, and not covered by a deletion of the same time. */
    boolean survives(Clustering<?> clustering, RowTouch touch) {
        if (!touch.isWritten || touch.isDeleted || isPartitionDeleted)
            return false;
        for (RangeChange range : ranges)
            if (range.covers(clustering, table.base.comparator))
                return false;
        return true;
    }

    boolean staticsSurvive() {
        return statics != null && statics.isWritten && !isPartitionDeleted;
    }
}
