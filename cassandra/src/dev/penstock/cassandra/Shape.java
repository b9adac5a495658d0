package dev.penstock.cassandra;

import org.apache.cassandra.db.LivenessInfo;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.db.rows.ColumnData;
import org.apache.cassandra.db.rows.ComplexColumnData;
import org.apache.cassandra.db.rows.Row;

/**
 * Decides whether a partition's changes can be told as they stand, or must be split by time, TTL and kind.
 *
 * They stand if all has one timestamp and one TTL (none for tombstones) and is of one kind. Two details are ScyllaDB's:
 * deleted rows that sort before every written row do not mix kinds, and a live element after any row marker does.
 */
final class Shape {
    private boolean seen;
    private long timestamp;
    private int ttl;
    private boolean hasStatics;
    private boolean hasRows;
    private boolean hasUpserts;
    private boolean hasRanges;
    private boolean hasMarker;
    private boolean split;

    static Shape of(PartitionChange change) {
        Shape shape = new Shape();
        shape.visitStatics(change.statics);
        for (int i = 0; i < change.rows.size() && !shape.split; i++)
            shape.visitRow(change.rows.get(i));
        for (int i = 0; i < change.ranges.size() && !shape.split; i++)
            shape.visitRange(change.ranges.get(i));
        if (change.isDeleted())
            shape.visitPartition(change.deletedAt);
        return shape;
    }

    boolean isEmpty() {
        return !seen;
    }

    boolean mustSplit() {
        return split;
    }

    long timestamp() {
        return timestamp;
    }

    int ttl() {
        return ttl;
    }

    private void visitStatics(Row statics) {
        if (statics.columnCount() == 0)
            return;
        hasStatics = true;
        visitCells(statics);
    }

    private void visitRow(RowChange row) {
        if (row.upsert != null) {
            split |= hasStatics;
            hasRows = hasUpserts = true;
            visitMarker(row.upsert.primaryKeyLivenessInfo());
            visitCells(row.upsert);
        }
        if (row.isDeleted()) {
            split |= hasStatics || hasUpserts;
            hasRows = true;
            visit(row.deletedAt, 0);
        }
    }

    private void visitMarker(LivenessInfo marker) {
        if (marker.isEmpty())
            return;
        hasMarker = true;
        visit(marker.timestamp(), marker.ttl());
    }

    private void visitRange(RangeChange range) {
        split |= hasStatics || hasRows;
        hasRanges = true;
        visit(range.deletedAt, 0);
    }

    private void visitPartition(long deletedAt) {
        split |= hasStatics || hasRows || hasRanges;
        visit(deletedAt, 0);
    }

    private void visitCells(Row row) {
        for (ColumnData data : row) {
            if (data instanceof Cell)
                visit(((Cell<?>) data).timestamp(), ((Cell<?>) data).ttl());
            else
                visitElements((ComplexColumnData) data);
        }
    }

    private void visitElements(ComplexColumnData data) {
        if (!data.complexDeletion().isLive())
            visit(clearedAt(data), 0);
        for (Cell<?> cell : data) {
            visit(cell.timestamp(), cell.ttl());
            split |= hasMarker && !cell.isTombstone();
        }
    }

    /** An overwriting statement at T clears the old elements at T-1, so the log tells a cleared column one later. */
    static long clearedAt(ComplexColumnData data) {
        return data.complexDeletion().markedForDeleteAt() + 1;
    }

    private void visit(long timestamp, int ttl) {
        if (!seen) {
            seen = true;
            this.timestamp = timestamp;
            this.ttl = ttl;
        }
        split |= timestamp != this.timestamp || ttl != this.ttl;
    }
}
