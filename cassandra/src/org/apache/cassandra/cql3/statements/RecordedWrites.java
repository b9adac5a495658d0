package org.apache.cassandra.cql3.statements;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import com.google.common.collect.ImmutableMap;

import dev.penstock.cassandra.LogContext;
import dev.penstock.cassandra.LogTable;
import dev.penstock.cassandra.LogTables;
import dev.penstock.cassandra.LogWriter;

import org.apache.cassandra.db.ConsistencyLevel;
import org.apache.cassandra.db.DecoratedKey;
import org.apache.cassandra.db.IMutation;
import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.db.RegularAndStaticColumns;
import org.apache.cassandra.db.commitlog.CommitLogSegment;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.net.MessagingService;
import org.apache.cassandra.schema.TableId;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.service.ClientState;

import static org.apache.cassandra.utils.MonotonicClock.Global.approxTime;

/** Collects what the statements of one request write: mutations of the base tables, then those of their logs. */
final class RecordedWrites implements UpdatesCollector {
    private final Map<TableId, RegularAndStaticColumns> columns;
    private final Map<DecoratedKey, List<RecordedUpdate>> partitions = new LinkedHashMap<>(4);
    private final LogContext context;
    private final List<IMutation> base = new ArrayList<>(2);
    private final List<IMutation> log = new ArrayList<>(2);

    /** Takes the columns that the request may write in each of its tables. */
    RecordedWrites(Map<TableId, RegularAndStaticColumns> columns, LogContext context) {
        this.columns = columns;
        this.context = context;
    }

    @Override
    public PartitionUpdate.Builder getPartitionUpdateBuilder(TableMetadata table, DecoratedKey key,
                                                             ConsistencyLevel level) {
        List<RecordedUpdate> updates = partitions.computeIfAbsent(key, k -> new ArrayList<>(1));
        for (RecordedUpdate update : updates)
            if (update.metadata().id.equals(table.id))
                return update;
        RecordedUpdate update = new RecordedUpdate(table, key, columns.get(table.id));
        updates.add(update);
        return update;
    }

    /** All mutations, those of the base tables first. Images are read here, so before anything is applied. */
    @Override
    public List<IMutation> toMutations(ClientState state) {
        partitions.forEach(this::build);
        for (IMutation mutation : base) {
            mutation.validateIndexedColumns(state);
            mutation.validateSize(MessagingService.current_version, CommitLogSegment.ENTRY_OVERHEAD_SIZE);
        }
        List<IMutation> all = new ArrayList<>(base.size() + log.size());
        all.addAll(base);
        all.addAll(log);
        return all;
    }

    private void build(DecoratedKey key, List<RecordedUpdate> updates) {
        Map<String, ImmutableMap.Builder<TableId, PartitionUpdate>> byKeyspace = new HashMap<>(2);
        for (RecordedUpdate update : updates) {
            PartitionUpdate built = update.build();
            TableMetadata table = built.metadata();
            byKeyspace.computeIfAbsent(table.keyspace, k -> ImmutableMap.builder()).put(table.id, built);
            LogTable logTable = LogTables.of(table.id);
            if (logTable != null)
                LogWriter.write(logTable, update.change(built), context, log);
        }
        // One mutation a partition and keyspace, whatever the number of tables, as the node itself does.
        byKeyspace.forEach((keyspace, tables) ->
                               base.add(new Mutation(keyspace, key, tables.build(), approxTime.now())));
    }

    /** The mutations of the base tables, once all are built. */
    List<IMutation> base() {
        return base;
    }
}
