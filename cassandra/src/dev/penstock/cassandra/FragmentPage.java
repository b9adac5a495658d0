package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;

import org.apache.cassandra.db.ClusteringBound;
import org.apache.cassandra.db.ClusteringPrefix;
import org.apache.cassandra.db.ColumnFamilyStore;
import org.apache.cassandra.db.DataRange;
import org.apache.cassandra.db.DecoratedKey;
import org.apache.cassandra.db.Keyspace;
import org.apache.cassandra.db.PartitionPosition;
import org.apache.cassandra.db.PartitionRangeReadCommand;
import org.apache.cassandra.db.ReadExecutionController;
import org.apache.cassandra.db.SinglePartitionReadCommand;
import org.apache.cassandra.db.Slice;
import org.apache.cassandra.db.Slices;
import org.apache.cassandra.db.filter.ClusteringIndexSliceFilter;
import org.apache.cassandra.db.filter.ColumnFilter;
import org.apache.cassandra.db.filter.DataLimits;
import org.apache.cassandra.db.filter.RowFilter;
import org.apache.cassandra.db.marshal.ByteType;
import org.apache.cassandra.db.marshal.CompositeType;
import org.apache.cassandra.db.partitions.UnfilteredPartitionIterator;
import org.apache.cassandra.db.rows.RangeTombstoneMarker;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.db.rows.Unfiltered;
import org.apache.cassandra.db.rows.UnfilteredRowIterator;
import org.apache.cassandra.dht.AbstractBounds;
import org.apache.cassandra.dht.ExcludingBounds;
import org.apache.cassandra.dht.Range;
import org.apache.cassandra.dht.Token;
import org.apache.cassandra.exceptions.InvalidRequestException;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.service.StorageService;
import org.apache.cassandra.utils.ByteBufferUtil;

/**
 * A page of fragments, read from what this node has stored; deletions are kept, also those that could be purged.
 * Partitions of other nodes, which a node keeps until it is cleaned up, are left out.
 *
 * It ends after as many fragments as the client asked for, or a mebibyte.
 */
final class FragmentPage {
    private static final int MOST_BYTES = 1 << 20;
    private static final int MOST_UNPAGED = 100_000;
    private static final ByteBuffer MERGED = ByteBufferUtil.bytes("merged");

    private final TableMetadata table;
    private final int size;
    private final boolean withValues;
    private final List<List<ByteBuffer>> rows = new ArrayList<>();
    private long bytes;
    private FragmentPlace last;
    private boolean isFull;
    private Set<Range<Token>> owned;

    /** A page of this many fragments, of all of them if it is not positive. */
    FragmentPage(TableMetadata table, int size, boolean withValues) {
        this.table = table;
        this.size = size;
        this.withValues = withValues;
    }

    List<List<ByteBuffer>> rows() {
        return rows;
    }

    /** Where the next page begins, null if this is the last one. */
    FragmentPlace next() {
        return isFull ? last : null;
    }

    void readPartition(SinglePartitionReadCommand command, FragmentPlace place) {
        if (place == null || place.region != FragmentPlace.END)
            readRest(command.partitionKey(), command.nowInSec(), place);
    }

    void readRange(PartitionRangeReadCommand command, FragmentPlace place) {
        AbstractBounds<PartitionPosition> bounds = command.dataRange().keyRange();
        if (place != null) {
            DecoratedKey key = table.partitioner.decorateKey(place.key);
            if (place.region != FragmentPlace.END)
                readRest(key, command.nowInSec(), place);
            bounds = bounds.inclusiveRight() ? new Range<>(key, bounds.right) : new ExcludingBounds<>(key, bounds.right);
        }
        if (isFull)
            return;
        DataRange range = new DataRange(bounds, new ClusteringIndexSliceFilter(Slices.ALL, false));
        PartitionRangeReadCommand all = PartitionRangeReadCommand.create(
            table, command.nowInSec(), ColumnFilter.all(table), RowFilter.none(), DataLimits.NONE, range);
        try (ReadExecutionController controller = all.executionController();
             UnfilteredPartitionIterator partitions = all.queryStorage(store(), controller)) {
            while (!isFull && partitions.hasNext())
                try (UnfilteredRowIterator partition = partitions.next()) {
                    add(partition, null);
                }
        }
    }

    /** The fragments of a partition after a place. */
    private void readRest(DecoratedKey key, long now, FragmentPlace place) {
        Slices slices = Slices.ALL;
        if (place != null && place.region == FragmentPlace.CLUSTERED)
            slices = place.from == null ? Slices.NONE
                                        : Slices.with(table.comparator, Slice.make(place.from, ClusteringBound.TOP));
        SinglePartitionReadCommand command = SinglePartitionReadCommand.create(
            table, now, key, ColumnFilter.all(table), new ClusteringIndexSliceFilter(slices, false));
        try (ReadExecutionController controller = command.executionController();
             UnfilteredRowIterator partition = command.queryMemtableAndDisk(store(), controller)) {
            if (place != null || !isNothing(partition))
                add(partition, place);
        }
    }

    private static boolean isNothing(UnfilteredRowIterator partition) {
        return partition.partitionLevelDeletion().isLive() && partition.staticRow().isEmpty() && !partition.hasNext();
    }

    private ColumnFamilyStore store() {
        return Keyspace.openAndGetStore(table);
    }

    private boolean isOwned(DecoratedKey key) {
        if (owned == null)
            owned = StorageService.instance.getLocalReplicas(table.keyspace).ranges();
        return Range.isInRanges(key.getToken(), owned);
    }

    private void add(UnfilteredRowIterator partition, FragmentPlace after) {
        if (!isOwned(partition.partitionKey()))
            return;
        ByteBuffer key = partition.partitionKey().getKey();
        int region = after == null ? -1 : after.region;
        if (region < FragmentPlace.START)
            add(key, FragmentPlace.START, "partition start", FragmentJson.deletion(partition.partitionLevelDeletion()));
        if (!isFull && region < FragmentPlace.STATIC && !partition.staticRow().isEmpty()) {
            Row row = partition.staticRow();
            add(key, FragmentPlace.STATIC, "static row", FragmentJson.columns(row), values(row));
        }
        while (!isFull && partition.hasNext()) {
            Unfiltered fragment = partition.next();
            if (after == null || !isAgain(fragment, after))
                add(key, fragment);
        }
        if (!isFull)
            add(key, FragmentPlace.END, "partition end", null);
    }

    /** Whether it is the deletion that the last page ended with. */
    private boolean isAgain(Unfiltered fragment, FragmentPlace after) {
        return after.isDeletion && after.from != null && !fragment.isRow()
               && table.comparator.compare(fragment.clustering(), after.from) == 0;
    }

    private void add(ByteBuffer key, Unfiltered fragment) {
        ClusteringPrefix<?> position = fragment.clustering();
        FragmentPlace place = FragmentPlace.after(key, position);
        if (fragment.isRow()) {
            Row row = (Row) fragment;
            add(place, position, "clustering row", FragmentJson.row(row), values(row));
            return;
        }
        RangeTombstoneMarker marker = (RangeTombstoneMarker) fragment;
        add(place, position, "range tombstone change",
            FragmentJson.deletion(marker.isOpen(false) ? marker.openDeletionTime(false) : null), null);
    }

    private String values(Row row) {
        return withValues ? FragmentJson.values(row) : null;
    }

    private void add(ByteBuffer key, byte region, String kind, String metadata) {
        add(key, region, kind, metadata, null);
    }

    private void add(ByteBuffer key, byte region, String kind, String metadata, String value) {
        add(new FragmentPlace(key, region, null, false), null, kind, metadata, value);
    }

    /** Adds a row in the order of the columns of {@link FragmentsStatement}. */
    private void add(FragmentPlace place, ClusteringPrefix<?> position, String kind, String metadata, String value) {
        List<ByteBuffer> row = new ArrayList<>();
        if (table.partitionKeyColumns().size() == 1)
            row.add(place.key);
        else
            row.addAll(List.of(((CompositeType) table.partitionKeyType).split(place.key)));
        row.add(MERGED);
        row.add(ByteType.instance.decompose(place.region));
        for (int i = 0; i < table.clusteringColumns().size(); i++)
            row.add(position != null && i < position.size() ? position.bufferAt(i) : null);
        row.add(position == null ? null : ByteType.instance.decompose((byte) weight(position)));
        row.add(text(metadata));
        row.add(ByteBufferUtil.bytes(kind));
        row.add(text(value));
        keep(row, place);
    }

    private static int weight(ClusteringPrefix<?> position) {
        return Integer.signum(position.kind().comparedToClustering);
    }

    private void keep(List<ByteBuffer> row, FragmentPlace place) {
        rows.add(row);
        last = place;
        for (ByteBuffer cell : row)
            bytes += cell == null ? 4 : 4 + cell.remaining();
        if (size > 0)
            isFull = rows.size() >= size || bytes >= MOST_BYTES;
        else if (rows.size() > MOST_UNPAGED)
            throw new InvalidRequestException("This SELECT has more than " + MOST_UNPAGED + " fragments: set a page"
                                              + " size");
    }

    private static ByteBuffer text(String value) {
        return value == null ? null : ByteBufferUtil.bytes(value);
    }
}
