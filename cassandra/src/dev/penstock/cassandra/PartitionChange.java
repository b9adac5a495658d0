package dev.penstock.cassandra;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import org.apache.cassandra.db.Clustering;
import org.apache.cassandra.db.ClusteringComparator;
import org.apache.cassandra.db.DecoratedKey;
import org.apache.cassandra.db.RangeTombstone;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.db.rows.Rows;
import org.apache.cassandra.schema.TableMetadata;

/** All that one request does to one partition of a base table, merged as ScyllaDB's coordinator merges it. */
public final class PartitionChange {
    final TableMetadata table;
    final DecoratedKey key;
    /** Never null, but often empty. */
    final Row statics;
    final List<RowChange> rows;
    final List<RangeChange> ranges;
    final long deletedAt;
    /** Added to each timestamp: a conditional write gets the time of its ballot, not the one of its statement. */
    final long shift;

    private PartitionChange(PartitionUpdate update, List<RowChange> rows, long shift) {
        this.table = update.metadata();
        this.key = update.partitionKey();
        this.statics = update.staticRow();
        this.rows = rows;
        this.ranges = update.deletionInfo().hasRanges() ? new ArrayList<>() : List.of();
        this.deletedAt = update.partitionLevelDeletion().markedForDeleteAt();
        this.shift = shift;
    }

    public static PartitionChange of(PartitionUpdate update, long shift) {
        List<RowChange> rows = new ArrayList<>(update.rowCount());
        for (Row row : update)
            rows.add(RowChange.of(row));
        return withRanges(new PartitionChange(update, rows, shift), update);
    }

    /**
     * From the single writes of a batch that both writes and deletes rows of the partition. Merged, the node drops the
     * cells that a row's deletion covers, while the log must still tell them.
     */
    public static PartitionChange of(PartitionUpdate update, List<Row> writes) {
        Map<Clustering<?>, RowChange> rows = new TreeMap<>(update.metadata().comparator);
        for (Row row : writes)
            rows.merge(row.clustering(), RowChange.of(row), PartitionChange::merge);
        return withRanges(new PartitionChange(update, new ArrayList<>(rows.values()), 0), update);
    }

    private static RowChange merge(RowChange one, RowChange other) {
        Row upsert = one.upsert == null ? other.upsert
                                        : other.upsert == null ? one.upsert : Rows.merge(one.upsert, other.upsert);
        return new RowChange(one.clustering, upsert, Math.max(one.deletedAt, other.deletedAt));
    }

    private static PartitionChange withRanges(PartitionChange change, PartitionUpdate update) {
        if (!update.deletionInfo().hasRanges())
            return change;
        ClusteringComparator comparator = change.table.comparator;
        for (Iterator<RangeTombstone> i = update.deletionInfo().rangeIterator(false); i.hasNext(); ) {
            RangeChange range = RangeChange.of(i.next());
            Clustering<?> row = range.singleRow(comparator);
            if (row != null)
                change.deleteRow(row, range.deletedAt, comparator);
            else
                change.deleteRange(range, comparator);
        }
        return change;
    }

    private void deleteRow(Clustering<?> row, long deletedAt, ClusteringComparator comparator) {
        int i = 0;
        while (i < rows.size() && comparator.compare(rows.get(i).clustering, row) < 0)
            i++;
        RowChange deletion = new RowChange(row, null, deletedAt);
        if (i < rows.size() && comparator.compare(rows.get(i).clustering, row) == 0)
            rows.set(i, merge(rows.get(i), deletion));
        else
            rows.add(i, deletion);
    }

    private void deleteRange(RangeChange range, ClusteringComparator comparator) {
        int last = ranges.size() - 1;
        if (last >= 0 && ranges.get(last).continuesIn(range, comparator))
            ranges.set(last, ranges.get(last).join(range));
        else
            ranges.add(range);
    }

    boolean isDeleted() {
        return deletedAt != RowChange.NOT_DELETED;
    }
}
