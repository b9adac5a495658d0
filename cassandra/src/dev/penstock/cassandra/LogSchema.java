package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import com.google.common.collect.ImmutableMap;

import org.apache.cassandra.cql3.ColumnIdentifier;
import org.apache.cassandra.db.compaction.TimeWindowCompactionStrategy;
import org.apache.cassandra.db.marshal.AbstractType;
import org.apache.cassandra.db.marshal.BooleanType;
import org.apache.cassandra.db.marshal.ByteType;
import org.apache.cassandra.db.marshal.BytesType;
import org.apache.cassandra.db.marshal.CollectionType;
import org.apache.cassandra.db.marshal.EmptyType;
import org.apache.cassandra.db.marshal.Int32Type;
import org.apache.cassandra.db.marshal.ListType;
import org.apache.cassandra.db.marshal.LongType;
import org.apache.cassandra.db.marshal.MapType;
import org.apache.cassandra.db.marshal.SetType;
import org.apache.cassandra.db.marshal.ShortType;
import org.apache.cassandra.db.marshal.TimeUUIDType;
import org.apache.cassandra.schema.CachingParams;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.schema.CompactionParams;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.schema.TableParams;
import org.apache.cassandra.utils.ByteBufferUtil;

/** What a log table looks like: its name, its columns for a given base table, its options when it is created. */
public final class LogSchema {
    static final String SUFFIX = "_scylla_cdc_log";
    static final String STREAM_ID = "cdc$stream_id";
    static final String TIME = "cdc$time";
    static final String BATCH_SEQ_NO = "cdc$batch_seq_no";
    static final String OPERATION = "cdc$operation";
    static final String TTL = "cdc$ttl";
    static final String END_OF_BATCH = "cdc$end_of_batch";
    private static final String DELETED = "cdc$deleted_";
    private static final String DELETED_ELEMENTS = "cdc$deleted_elements_";

    /** ScyllaDB knows a log by its partitioner; here a table's partitioner is not stored, so the log carries a mark. */
    static final String MARK = "cdc_log";

    private LogSchema() {}

    public static String name(String base) {
        return base + SUFFIX;
    }

    public static boolean isLog(TableMetadata table) {
        return table.params.extensions.containsKey(MARK);
    }

    public static boolean hasLogName(String table) {
        return table.endsWith(SUFFIX);
    }

    /** The name of the base table of a log. */
    public static String baseName(String log) {
        return log.substring(0, log.length() - SUFFIX.length());
    }

    static ColumnIdentifier deleted(ColumnMetadata column) {
        return new ColumnIdentifier(DELETED + column.name, true);
    }

    static ColumnIdentifier deletedElements(ColumnMetadata column) {
        return new ColumnIdentifier(DELETED_ELEMENTS + column.name, true);
    }

    /** Columns of a log beyond its own six, with their types. */
    static Map<ColumnIdentifier, AbstractType<?>> columns(TableMetadata base) {
        Map<ColumnIdentifier, AbstractType<?>> columns = new LinkedHashMap<>();
        for (ColumnMetadata key : base.partitionKeyColumns())
            columns.put(key.name, key.type.unwrap());
        for (ColumnMetadata key : clustering(base))
            columns.put(key.name, key.type.unwrap());
        for (ColumnMetadata column : base.regularAndStaticColumns()) {
            if (isHidden(base, column))
                continue;
            columns.put(column.name, valueType(column.type));
            columns.put(deleted(column), BooleanType.instance);
            if (column.isComplex())
                columns.put(deletedElements(column), SetType.getInstance(elementKey(column.type), false));
        }
        return columns;
    }

    /** A compact table without clustering columns has one inside the node, which users never see. */
    static Iterable<ColumnMetadata> clustering(TableMetadata base) {
        return base.isStaticCompactTable() ? List.of() : base.clusteringColumns();
    }

    static boolean isHidden(TableMetadata base, ColumnMetadata column) {
        return column.type instanceof EmptyType || base.isStaticCompactTable() && !column.isStatic();
    }

    private static AbstractType<?> valueType(AbstractType<?> type) {
        if (type.isMultiCell() && type instanceof ListType)
            return MapType.getInstance(TimeUUIDType.instance, ((ListType<?>) type).getElementsType(), false);
        return type.isMultiCell() ? type.freeze() : type;
    }

    private static AbstractType<?> elementKey(AbstractType<?> type) {
        return type instanceof CollectionType ? ((CollectionType<?>) type).nameComparator() : ShortType.instance;
    }

    public static TableMetadata create(TableMetadata base, CdcOptions options) {
        TableMetadata.Builder log = TableMetadata.builder(base.keyspace, name(base.name))
                                                 .params(params(base, options))
                                                 .addPartitionKeyColumn(STREAM_ID, BytesType.instance)
                                                 .addClusteringColumn(TIME, TimeUUIDType.instance)
                                                 .addClusteringColumn(BATCH_SEQ_NO, Int32Type.instance)
                                                 .addRegularColumn(OPERATION, ByteType.instance)
                                                 .addRegularColumn(TTL, LongType.instance)
                                                 .addRegularColumn(END_OF_BATCH, BooleanType.instance);
        columns(base).forEach((name, type) -> log.addRegularColumn(name, type));
        return log.build();
    }

    static boolean isOwnColumn(ColumnMetadata column) {
        String name = column.name.toString();
        return column.isPrimaryKeyColumn() || name.equals(OPERATION) || name.equals(TTL) || name.equals(END_OF_BATCH);
    }

    private static TableParams params(TableMetadata base, CdcOptions options) {
        ByteBuffer mark = ByteBufferUtil.bytes(base.name);
        TableParams.Builder params = TableParams.builder()
                                                .comment("CDC log for " + base.keyspace + '.' + base.name)
                                                .caching(CachingParams.CACHE_NOTHING)
                                                .compaction(compaction(options.ttl))
                                                .extensions(ImmutableMap.of(MARK, mark));
        // Log rows expire together and are never overwritten: nothing has to be kept for repair after the TTL.
        return (options.ttl > 0 ? params.gcGraceSeconds(0) : params).build();
    }

    private static CompactionParams compaction(int ttl) {
        if (ttl == 0)
            return CompactionParams.create(TimeWindowCompactionStrategy.class, Map.of());
        int window = (ttl + 23) / 24;
        return CompactionParams.create(TimeWindowCompactionStrategy.class,
                                       Map.of("compaction_window_unit", "MINUTES",
                                              "compaction_window_size", Integer.toString((window + 59) / 60),
                                              "expired_sstable_check_frequency_seconds",
                                              Integer.toString(Math.max(1, window / 2))));
    }
}
