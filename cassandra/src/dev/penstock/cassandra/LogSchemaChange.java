package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;

import org.apache.cassandra.cql3.ColumnIdentifier;
import org.apache.cassandra.db.marshal.AbstractType;
import org.apache.cassandra.exceptions.InvalidRequestException;
import org.apache.cassandra.exceptions.UnauthorizedException;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.schema.DroppedColumn;
import org.apache.cassandra.schema.KeyspaceMetadata;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.schema.TableParams;
import org.apache.cassandra.schema.Tables;
import org.apache.cassandra.service.ClientState;

/**
 * Completes a change of a keyspace by what it means for logs: they are created, follow their base table's columns, and
 * go with it.
 *
 * Works on the keyspace before and after the user's statement, so it need not know the statement, and base table and
 * log change in one step of the schema.
 */
public final class LogSchemaChange {
    /** Writes may come with timestamps this much ahead; a column dropped from a log hides all of them. */
    private static final long DROP_DELAY_MICROS = 5_000_000;

    private final KeyspaceMetadata before;
    private final KeyspaceMetadata after;
    private Tables tables;

    private LogSchemaChange(KeyspaceMetadata before, KeyspaceMetadata after) {
        this.before = before;
        this.after = after;
        this.tables = after.tables;
    }

    /** The keyspace with its logs in line; {@code options}, if not null, are new ones for the table. */
    public static KeyspaceMetadata complete(KeyspaceMetadata before, KeyspaceMetadata after, String table,
                                            CdcOptions options) {
        LogSchemaChange change = new LogSchemaChange(before, after);
        before.tables.forEach(change::refuseDrop);
        if (options != null)
            change.setOptions(table, options);
        before.tables.forEach(change::dropLog);
        change.after.tables.forEach(base -> change.followBase(base.name));
        return after.withSwapped(change.tables);
    }

    /** Refuses a change of the columns of a log, before the node looks whether it has such columns. */
    public static void refuseColumns(KeyspaceMetadata keyspace, String table, boolean renames) {
        TableMetadata log = keyspace.tables.getNullable(table);
        if (log != null && LogSchema.isLog(log))
            throw new InvalidRequestException(isAttached(keyspace.tables, log) ? attachedText(renames)
                                                                              : detachedText(renames));
    }

    private static boolean isAttached(Tables tables, TableMetadata log) {
        TableMetadata base = tables.getNullable(LogSchema.baseName(log.name));
        return base != null && CdcOptions.isEnabled(base);
    }

    private static String attachedText(boolean renames) {
        return renames ? "Cannot rename a column of a CDC log table."
                       : "You cannot modify the set of columns of a CDC log table directly."
                         + " Modify the base table instead.";
    }

    private static String detachedText(boolean renames) {
        return renames ? "You cannot rename a column of a CDC log table. Although the base table has deactivated CDC,"
                         + " this table will continue being a CDC log table until it is dropped."
                       : "You cannot modify the set of columns of a CDC log table directly. Although the base table"
                         + " has deactivated CDC, this table will continue being a CDC log table until it is dropped."
                         + " If you want to modify the columns in it, you can only do that by reenabling CDC on the"
                         + " base table, which will reattach this log table. Then you will be able to modify the"
                         + " columns in the base table, and that will have effect on the log table too. Modifying the"
                         + " columns of a CDC log table directly is never allowed.";
    }

    private void refuseDrop(TableMetadata old) {
        if (LogSchema.isLog(old) && !after.hasTable(old.name) && isAttached(after.tables, old))
            throw new UnauthorizedException("Cannot DROP cdc log table " + old.name);
    }

    private void setOptions(String name, CdcOptions options) {
        TableMetadata table = tables.getNullable(name);
        if (table == null)
            return;
        if (LogSchema.isLog(table))
            throw new InvalidRequestException(String.format(
                "Cannot create a CDC log for a table %s.%s, because creating nested CDC logs is not allowed",
                table.keyspace, table.name));
        if (options.enabled && table.isCounter())
            throw new InvalidRequestException(String.format(
                "Cannot create CDC log for table %s.%s. Counter support not implemented", table.keyspace, table.name));
        boolean forgets = !options.enabled && !before.hasTable(name);
        if (!forgets)
            tables = tables.withSwapped(table.withSwapped(withOptions(table.params, options)));
    }

    private static TableParams withOptions(TableParams params, CdcOptions options) {
        Map<String, ByteBuffer> extensions = new HashMap<>(params.extensions);
        extensions.put(CdcOptions.EXTENSION, options.serialize());
        return params.unbuild().extensions(extensions).build();
    }

    /** A log goes with its base table, whether it still receives changes or not. */
    private void dropLog(TableMetadata old) {
        TableMetadata log = tables.getNullable(LogSchema.name(old.name));
        if (!after.hasTable(old.name) && log != null && LogSchema.isLog(log))
            tables = tables.without(log.name);
    }

    private void followBase(String name) {
        TableMetadata base = tables.getNullable(name);
        if (base == null || base == before.tables.getNullable(name) || !CdcOptions.isEnabled(base))
            return;
        TableMetadata log = tables.getNullable(LogSchema.name(name));
        if (log == null)
            tables = tables.with(LogSchema.create(base, CdcOptions.of(base)));
        else if (LogSchema.isLog(log))
            tables = tables.withSwapped(follow(base, log));
        else
            throw new InvalidRequestException(String.format(
                "Cannot create CDC log table for table %s.%s because a table of name %s.%s already exists",
                base.keyspace, base.name, log.keyspace, log.name));
    }

    private static TableMetadata follow(TableMetadata base, TableMetadata log) {
        long now = ClientState.getTimestamp();
        Map<ColumnIdentifier, AbstractType<?>> columns = LogSchema.columns(base);
        TableMetadata.Builder builder = log.unbuild();
        for (ColumnMetadata column : log.columns()) {
            if (LogSchema.isOwnColumn(column) || columns.containsKey(column.name))
                continue;
            builder.removeRegularOrStaticColumn(column.name);
            builder.recordColumnDrop(column, now + DROP_DELAY_MICROS);
        }
        columns.forEach((name, type) -> {
            ColumnMetadata existing = log.getColumn(name);
            if (existing == null)
                checkNotJustDropped(log, name, now);
            else if (!existing.type.equals(type))
                builder.removeRegularOrStaticColumn(name);
            if (builder.getColumn(name) == null)
                builder.addRegularColumn(name, type);
        });
        return builder.build();
    }

    private static void checkNotJustDropped(TableMetadata log, ColumnIdentifier name, long now) {
        DroppedColumn dropped = log.droppedColumns.get(name.bytes);
        if (dropped == null || dropped.droppedTime <= now)
            return;
        throw new InvalidRequestException(String.format(
            "Cannot add column %s because a column with the same name was dropped too recently."
            + " Please retry after %d seconds", name, (dropped.droppedTime - now) / 1_000_000 + 1));
    }
}
