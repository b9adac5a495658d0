package dev.penstock.cassandra;

import org.apache.cassandra.db.Clustering;
import org.apache.cassandra.db.DeletionTime;
import org.apache.cassandra.db.rows.Row;

/** What a request does to one clustered row: cells and a marker written, a deletion of the row, or both. */
final class RowChange {
    static final long NOT_DELETED = DeletionTime.LIVE.markedForDeleteAt();

    final Clustering<?> clustering;
    /** The marker and cells, or null. */
    final Row upsert;
    final long deletedAt;

    RowChange(Clustering<?> clustering, Row upsert, long deletedAt) {
        this.clustering = clustering;
        this.upsert = upsert;
        this.deletedAt = deletedAt;
    }

    static RowChange of(Row row) {
        boolean writes = row.columnCount() > 0 || !row.primaryKeyLivenessInfo().isEmpty();
        return new RowChange(row.clustering(), writes ? row : null, row.deletion().time().markedForDeleteAt());
    }

    boolean isDeleted() {
        return deletedAt != NOT_DELETED;
    }
}
