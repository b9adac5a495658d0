package dev.penstock.cassandra;

import org.apache.cassandra.db.Clustering;

/** One row of the log that tells a change; a deleted range is one of these and two rows. */
final class Delta {
    /** In the order in which the changes of a group that mixes kinds are told. */
    enum Kind {
        STATIC(1), INSERT(2), UPDATE(1), ROW_DELETE(3), RANGE_DELETE(5), PARTITION_DELETE(4);

        final int code;

        Kind(int code) {
            this.code = code;
        }
    }

    final Kind kind;
    /** Null for the static row, a range and a partition. */
    final Clustering<?> clustering;
    final int ttl;
    final CellSource cells;
    final RangeChange range;

    private Delta(Kind kind, Clustering<?> clustering, int ttl, CellSource cells, RangeChange range) {
        this.kind = kind;
        this.clustering = clustering;
        this.ttl = ttl;
        this.cells = cells;
        this.range = range;
    }

    static Delta statics(int ttl, CellSource cells) {
        return new Delta(Kind.STATIC, null, ttl, cells, null);
    }

    static Delta upsert(boolean isInsert, Clustering<?> clustering, int ttl, CellSource cells) {
        return new Delta(isInsert ? Kind.INSERT : Kind.UPDATE, clustering, ttl, cells, null);
    }

    static Delta rowDelete(Clustering<?> clustering) {
        return new Delta(Kind.ROW_DELETE, clustering, 0, CellSource.NONE, null);
    }

    static Delta rangeDelete(RangeChange range) {
        return new Delta(Kind.RANGE_DELETE, null, 0, CellSource.NONE, range);
    }

    static Delta partitionDelete() {
        return new Delta(Kind.PARTITION_DELETE, null, 0, CellSource.NONE, null);
    }

    boolean isUpsert() {
        return kind == Kind.INSERT || kind == Kind.UPDATE;
    }

    static int rank(Delta delta) {
        return delta.kind.ordinal();
    }
}
