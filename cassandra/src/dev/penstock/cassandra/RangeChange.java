package dev.penstock.cassandra;

import org.apache.cassandra.db.ClusteringBound;
import org.apache.cassandra.db.ClusteringComparator;
import org.apache.cassandra.db.Clustering;
import org.apache.cassandra.db.RangeTombstone;
import org.apache.cassandra.db.Slice;

/** A deleted range of clustered rows; start and end follow the clustering order. */
final class RangeChange {
    final Slice slice;
    final long deletedAt;

    RangeChange(Slice slice, long deletedAt) {
        this.slice = slice;
        this.deletedAt = deletedAt;
    }

    static RangeChange of(RangeTombstone range) {
        return new RangeChange(range.deletedSlice(), range.deletionTime().markedForDeleteAt());
    }

    /** The one row the range covers if both its bounds are that row's whole key, else null. */
    Clustering<?> singleRow(ClusteringComparator comparator) {
        ClusteringBound<?> start = slice.start();
        ClusteringBound<?> end = slice.end();
        if (start.size() == 0 || start.size() < comparator.size() || end.size() < comparator.size())
            return null;
        if (!start.isInclusive() || !end.isInclusive())
            return null;
        Clustering<?> row = key(start);
        return comparator.compare(row, key(end)) == 0 ? row : null;
    }

    private static Clustering<?> key(ClusteringBound<?> bound) {
        return Clustering.make(bound.getBufferArray());
    }

    /** Whether the other range begins where this one ends: the node cuts overlapping ranges into such pieces. */
    boolean continuesIn(RangeChange next, ClusteringComparator comparator) {
        return deletedAt == next.deletedAt && comparator.compare(slice.end(), next.slice.start()) == 0;
    }

    RangeChange join(RangeChange next) {
        return new RangeChange(Slice.make(slice.start(), next.slice.end()), deletedAt);
    }

    boolean covers(Clustering<?> row, ClusteringComparator comparator) {
        return slice.includes(comparator, row);
    }
}
