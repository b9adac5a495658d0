package dev.penstock.cassandra;

import java.util.BitSet;
import java.util.List;
import java.util.NavigableSet;
import java.util.TreeSet;

import org.apache.cassandra.db.Clustering;
import org.apache.cassandra.db.Columns;
import org.apache.cassandra.db.ConsistencyLevel;
import org.apache.cassandra.db.Keyspace;
import org.apache.cassandra.db.ReadExecutionController;
import org.apache.cassandra.db.RegularAndStaticColumns;
import org.apache.cassandra.db.SinglePartitionReadCommand;
import org.apache.cassandra.db.Slices;
import org.apache.cassandra.db.filter.ClusteringIndexNamesFilter;
import org.apache.cassandra.db.filter.ClusteringIndexSliceFilter;
import org.apache.cassandra.db.filter.ColumnFilter;
import org.apache.cassandra.db.filter.DataLimits;
import org.apache.cassandra.db.filter.RowFilter;
import org.apache.cassandra.db.partitions.PartitionIterator;
import org.apache.cassandra.db.rows.RowIterator;
import org.apache.cassandra.locator.AbstractReplicationStrategy;
import org.apache.cassandra.locator.Replica;

/** Reads, before a request is applied, the rows whose images it needs. */
final class ImageRead {
    private final LogTable table;
    private final PartitionChange change;
    private final List<GroupTouch> groups;
    private final NavigableSet<Clustering<?>> rows;
    private boolean readsStatics;
    private boolean deletesRow;

    ImageRead(LogTable table, PartitionChange change, List<GroupTouch> groups) {
        this.table = table;
        this.change = change;
        this.groups = groups;
        this.rows = new TreeSet<>(table.base.comparator);
        groups.forEach(this::add);
    }

    private void add(GroupTouch group) {
        readsStatics |= group.statics != null;
        group.rows.forEach((clustering, touch) -> {
            deletesRow |= touch.isDeleted;
            // A deleted row has no postimage.
            if (touch.isWritten || table.options.preimage != CdcOptions.Preimage.NONE)
                rows.add(clustering);
        });
    }

    PartitionState read(LogContext context) {
        PartitionState state = new PartitionState(table);
        if (rows.isEmpty() && !readsStatics)
            return state;
        SinglePartitionReadCommand command = command(context.nowInSeconds);
        ConsistencyLevel level = readLevel(context.consistency);
        if (isAnsweredHere(level))
            loadHere(state, command);
        else
            load(state, command.execute(level, null, context.requestTime));
        return state;
    }

    /** Whether this node's own copy is all that the level asks for: then the read needs no request to replicas. */
    private boolean isAnsweredHere(ConsistencyLevel level) {
        AbstractReplicationStrategy strategy = Keyspace.open(table.base.keyspace).getReplicationStrategy();
        if (level.blockFor(strategy) != 1)
            return false;
        Replica self = strategy.getNaturalReplicasForToken(change.key.getToken()).selfIfPresent();
        return self != null && self.isFull();
    }

    private void loadHere(PartitionState state, SinglePartitionReadCommand command) {
        try (ReadExecutionController controller = command.executionController()) {
            load(state, command.executeInternal(controller));
        }
    }

    private void load(PartitionState state, PartitionIterator partitions) {
        try (PartitionIterator found = partitions) {
            while (found.hasNext())
                load(state, found.next());
        }
    }

    private void load(PartitionState state, RowIterator found) {
        BitSet wanted = wantedRegulars();
        try (RowIterator partition = found) {
            if (readsStatics)
                state.loadStatics(partition.staticRow(), wantedStatics());
            while (!rows.isEmpty() && partition.hasNext())
                state.loadRow(partition.next(), wanted);
        }
    }

    private SinglePartitionReadCommand command(long nowInSeconds) {
        RegularAndStaticColumns all = table.base.regularAndStaticColumns();
        // All regular columns: a row exists if any of them has a value, not only those that the image shows.
        Columns statics = readsStatics ? all.statics : Columns.NONE;
        Columns regulars = rows.isEmpty() ? Columns.NONE : all.regulars;
        ColumnFilter columns = ColumnFilter.selection(new RegularAndStaticColumns(statics, regulars));
        if (!rows.isEmpty())
            return SinglePartitionReadCommand.create(table.base, nowInSeconds, change.key, columns,
                                                     new ClusteringIndexNamesFilter(rows, false));
        // The node returns no static row for an empty selection of rows, so it is read with the first row.
        return SinglePartitionReadCommand.create(table.base, nowInSeconds, columns, RowFilter.none(),
                                                 DataLimits.cqlLimits(1), change.key,
                                                 new ClusteringIndexSliceFilter(Slices.ALL, false));
    }

    private boolean readsAll() {
        return table.options.postimage || table.options.preimage == CdcOptions.Preimage.FULL;
    }

    /**
     * With {@code preimage: true} alone ScyllaDB reads only the columns that the first row of the request writes, so
     * other rows of a batch show their other columns as deleted. Readers built for one must see the same on the other.
     */
    private BitSet wantedRegulars() {
        if (readsAll() || deletesRow || change.rows.isEmpty())
            return null;
        RowTouch first = new RowTouch(table);
        if (change.rows.get(0).upsert != null)
            CellSource.of(change.rows.get(0).upsert).feed(first);
        return first.columns;
    }

    private BitSet wantedStatics() {
        if (readsAll() || table.base.isStaticCompactTable())
            return null;
        BitSet written = new BitSet();
        for (GroupTouch group : groups)
            if (group.statics != null)
                written.or(group.statics.columns);
        return written;
    }

    private static ConsistencyLevel readLevel(ConsistencyLevel write) {
        switch (write) {
            case ANY:
                return ConsistencyLevel.ONE;
            case ALL:
            case SERIAL:
            case EACH_QUORUM:
                return ConsistencyLevel.QUORUM;
            case LOCAL_SERIAL:
                return ConsistencyLevel.LOCAL_QUORUM;
            default:
                return write;
        }
    }
}
