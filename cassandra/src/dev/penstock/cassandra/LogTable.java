package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import com.google.common.collect.Iterables;

import org.apache.cassandra.cql3.ColumnIdentifier;
import org.apache.cassandra.db.Columns;
import org.apache.cassandra.db.DecoratedKey;
import org.apache.cassandra.db.marshal.CompositeType;
import org.apache.cassandra.exceptions.InvalidRequestException;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.schema.TableMetadata;

/** A base table together with its log: the layout that every write needs, computed once for a version of the schema. */
public final class LogTable {
    final TableMetadata base;
    final TableMetadata log;
    final CdcOptions options;
    /** The log's columns in the order in which a row of the node holds them. */
    final ColumnMetadata[] columns;
    final int operation;
    final int ttl;
    final int endOfBatch;
    final int[] partitionKey;
    final int[] clustering;
    final LoggedColumn[] regulars;
    final LoggedColumn[] statics;
    private final Map<ColumnIdentifier, LoggedColumn> byName = new HashMap<>();

    LogTable(TableMetadata base, TableMetadata log, CdcOptions options) {
        this.base = base;
        this.log = log;
        this.options = options;
        columns = Iterables.toArray(log.regularColumns(), ColumnMetadata.class);
        Map<ColumnIdentifier, Integer> positions = new HashMap<>();
        for (int i = 0; i < columns.length; i++)
            positions.put(columns[i].name, i);
        operation = positions.get(new ColumnIdentifier(LogSchema.OPERATION, true));
        ttl = positions.get(new ColumnIdentifier(LogSchema.TTL, true));
        endOfBatch = positions.get(new ColumnIdentifier(LogSchema.END_OF_BATCH, true));
        partitionKey = keys(base.partitionKeyColumns(), positions);
        clustering = keys(LogSchema.clustering(base), positions);
        regulars = logged(base.regularColumns(), positions);
        statics = logged(base.staticColumns(), positions);
    }

    private int[] keys(Iterable<ColumnMetadata> keys, Map<ColumnIdentifier, Integer> positions) {
        int[] found = new int[Iterables.size(keys)];
        int i = 0;
        for (ColumnMetadata key : keys)
            found[i++] = position(key, key.name, positions);
        return found;
    }

    private LoggedColumn[] logged(Columns columns, Map<ColumnIdentifier, Integer> positions) {
        List<LoggedColumn> found = new ArrayList<>();
        for (ColumnMetadata column : columns) {
            if (LogSchema.isHidden(base, column))
                continue;
            int elements = column.isComplex() ? position(column, LogSchema.deletedElements(column), positions) : -1;
            LoggedColumn logged = new LoggedColumn(column, found.size(), position(column, column.name, positions),
                                                   position(column, LogSchema.deleted(column), positions), elements);
            found.add(logged);
            byName.put(column.name, logged);
        }
        return found.toArray(new LoggedColumn[0]);
    }

    private int position(ColumnMetadata column, ColumnIdentifier name, Map<ColumnIdentifier, Integer> positions) {
        Integer position = positions.get(name);
        if (position == null)
            throw missing(column);
        return position;
    }

    /** The logged column of a cell, or null for the hidden cell of a compact table. */
    LoggedColumn column(ColumnMetadata column) {
        LoggedColumn found = byName.get(column.name);
        if (found == null && !LogSchema.isHidden(base, column))
            throw missing(column);
        return found;
    }

    private InvalidRequestException missing(ColumnMetadata column) {
        return new InvalidRequestException(String.format("CDC log schema for %s.%s does not have base column %s",
                                                         base.keyspace, base.name, column.name));
    }

    boolean hasClustering() {
        return clustering.length > 0;
    }

    /** The values of the partition key's columns. */
    ByteBuffer[] split(DecoratedKey key) {
        ByteBuffer bytes = key.getKey();
        return base.partitionKeyType instanceof CompositeType
               ? ((CompositeType) base.partitionKeyType).split(bytes)
               : new ByteBuffer[]{ bytes };
    }
}
