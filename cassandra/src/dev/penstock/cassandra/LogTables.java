package dev.penstock.cassandra;

import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.TableId;
import org.apache.cassandra.schema.TableMetadata;

/**
 * Which tables have a log, remembered per version of the schema.
 *
 * A prepared statement keeps the table as it was when it was prepared, and a change of options does not invalidate it:
 * the present state is always looked up by the table's id.
 */
public final class LogTables {
    private static final class Snapshot {
        final UUID version;
        final ConcurrentHashMap<TableId, Optional<LogTable>> tables = new ConcurrentHashMap<>();

        Snapshot(UUID version) {
            this.version = version;
        }
    }

    private static volatile Snapshot current = new Snapshot(null);

    private LogTables() {}

    /** The table with its log, or null if its changes are not logged. */
    public static LogTable of(TableId id) {
        Snapshot snapshot = current;
        UUID version = Schema.instance.getVersion();
        // Each change of the schema sets a new object, so comparing references is enough.
        if (snapshot.version != version)
            current = snapshot = new Snapshot(version);
        Optional<LogTable> found = snapshot.tables.get(id);
        if (found == null)
            snapshot.tables.put(id, found = find(id));
        return found.orElse(null);
    }

    private static Optional<LogTable> find(TableId id) {
        TableMetadata base = Schema.instance.getTableMetadata(id);
        if (base == null)
            return Optional.empty();
        CdcOptions options = CdcOptions.of(base);
        if (options == null || !options.enabled)
            return Optional.empty();
        TableMetadata log = Schema.instance.getTableMetadata(base.keyspace, LogSchema.name(base.name));
        return log == null || !LogSchema.isLog(log) ? Optional.empty() : Optional.of(new LogTable(base, log, options));
    }
}
