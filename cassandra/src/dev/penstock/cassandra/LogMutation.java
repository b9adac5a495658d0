package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;

import org.apache.cassandra.db.Clustering;
import org.apache.cassandra.db.DecoratedKey;
import org.apache.cassandra.db.LivenessInfo;
import org.apache.cassandra.db.MutableDeletionInfo;
import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.db.commitlog.CommitLogSegment;
import org.apache.cassandra.db.partitions.BTreePartitionData;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.BTreeRow;
import org.apache.cassandra.db.rows.BufferCell;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.db.rows.EncodingStats;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.db.rows.Rows;
import org.apache.cassandra.net.MessagingService;
import org.apache.cassandra.utils.ByteBufferUtil;
import org.apache.cassandra.utils.BulkIterator;
import org.apache.cassandra.utils.TimeUUID;
import org.apache.cassandra.utils.btree.BTree;
import org.apache.cassandra.utils.btree.UpdateFunction;

/**
 * Collects log rows: gives each its place in its group, and makes one mutation per stream.
 *
 * Groups of one partition are in different streams only when a new generation begins between their timestamps.
 */
final class LogMutation {
    private static final long VARIANT = 0x8000000000000000L;
    private static final long RANDOM_BITS = 0x3fffffffffffffffL;

    private final LogTable table;
    private final LogRow row;
    private final DecoratedKey baseKey;
    private final long nowInSeconds;
    private final List<Row> rows = new ArrayList<>(4);
    private final List<Mutation> earlier = new ArrayList<>(0);
    private DecoratedKey stream;
    private long firstTimestamp;
    private long timestamp;
    private ByteBuffer time;
    private int sequence;

    LogMutation(LogTable table, LogRow row, DecoratedKey baseKey, long nowInSeconds) {
        this.table = table;
        this.row = row;
        this.baseKey = baseKey;
        this.nowInSeconds = nowInSeconds;
    }

    /** Starts a group: the rows up to its end share one cdc$time. */
    void begin(long timestamp) {
        DecoratedKey next = Generations.stream(timestamp, baseKey.getToken());
        if (stream != null && stream != next)
            flush();
        stream = next;
        if (rows.isEmpty())
            firstTimestamp = timestamp;
        this.timestamp = timestamp;
        // The same timestamp in two partitions must give two ids, hence the random half.
        long random = ThreadLocalRandom.current().nextLong() & RANDOM_BITS | VARIANT;
        time = TimeUUID.atUnixMicrosWithLsb(timestamp, random).toBytes();
        sequence = -1;
    }

    /** Ends the row that was being filled, if any, and makes place for one more. */
    void next() {
        if (sequence >= 0)
            rows.add(build());
        sequence++;
    }

    void end() {
        row.endOfBatch();
        rows.add(build());
    }

    void build(Collection<? super Mutation> out) {
        out.addAll(earlier);
        out.add(mutation());
    }

    private void flush() {
        earlier.add(mutation());
        rows.clear();
    }

    private Row build() {
        Cell<?>[] cells = new Cell<?>[table.columns.length];
        int count = 0;
        int ttl = table.options.ttl;
        for (int i = 0; i < cells.length; i++) {
            ByteBuffer value = row.values[i];
            if (value != null)
                cells[count++] = ttl == 0 ? BufferCell.live(table.columns[i], timestamp, value)
                                          : BufferCell.expiring(table.columns[i], timestamp, ttl, nowInSeconds, value);
        }
        Object[] tree = BTree.build(BulkIterator.of(cells), count, UpdateFunction.noOp());
        Clustering<?> place = Clustering.make(time, ByteBufferUtil.bytes(sequence));
        return BTreeRow.create(place, LivenessInfo.EMPTY, Row.Deletion.LIVE, tree);
    }

    private Mutation mutation() {
        MutableDeletionInfo live = MutableDeletionInfo.live();
        int ttl = table.options.ttl;
        // Known without a look at the cells: groups come in the order of their timestamps.
        long expiry = ttl == 0 ? Cell.NO_DELETION_TIME : nowInSeconds + ttl;
        EncodingStats stats = new EncodingStats(firstTimestamp, expiry, ttl);
        Object[] tree = BTree.build(BulkIterator.of(rows.iterator()), rows.size(), UpdateFunction.noOp());
        BTreePartitionData data = BTreePartitionData.unsafeConstruct(table.log.regularAndStaticColumns(), tree, live,
                                                                     Rows.EMPTY_STATIC_ROW, stats);
        Mutation mutation = new Mutation(PartitionUpdate.unsafeConstruct(table.log, stream, data, live, false));
        mutation.validateSize(MessagingService.current_version, CommitLogSegment.ENTRY_OVERHEAD_SIZE);
        return mutation;
    }
}
