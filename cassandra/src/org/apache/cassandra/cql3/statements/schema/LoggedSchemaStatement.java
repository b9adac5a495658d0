package org.apache.cassandra.cql3.statements.schema;

import java.lang.reflect.Field;
import java.util.Map;
import java.util.Set;

import dev.penstock.cassandra.CdcOptions;
import dev.penstock.cassandra.LogSchema;
import dev.penstock.cassandra.LogSchemaChange;

import org.apache.cassandra.audit.AuditLogContext;
import org.apache.cassandra.auth.IResource;
import org.apache.cassandra.cql3.statements.Hidden;
import org.apache.cassandra.cql3.statements.PropertyDefinitions;
import org.apache.cassandra.schema.KeyspaceMetadata;
import org.apache.cassandra.schema.Keyspaces;
import org.apache.cassandra.schema.Keyspaces.KeyspacesDiff;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.service.ClientState;
import org.apache.cassandra.transport.Event.SchemaChange;

/** A change of tables, types or views together with the change of the logs that follows from it. */
public final class LoggedSchemaStatement extends AlterSchemaStatement {
    private static final Field PROPERTIES = Hidden.field(PropertyDefinitions.class, "properties");
    private static final Field CREATE_ATTRIBUTES = Hidden.field(CreateTableStatement.class, "attrs");
    private static final Field CREATE_NAME = Hidden.field(CreateTableStatement.class, "tableName");
    private static final Field ALTER_ATTRIBUTES = Hidden.field(alterOptions(), "attrs");
    private static final Field CREATE_VIEW_ATTRIBUTES = Hidden.field(CreateViewStatement.class, "attrs");
    private static final Field CREATE_VIEW_BASE = Hidden.field(CreateViewStatement.class, "tableName");
    private static final String RENAMING = "RenameColumns";
    /** Classes of ALTER TABLE, which are private. */
    private static final Set<String> COLUMN_CHANGES = Set.of("AddColumns", "DropColumns", "AlterColumn", RENAMING);
    private static final Field ALTER_VIEW_ATTRIBUTES = Hidden.field(AlterViewStatement.class, "attrs");

    private final AlterSchemaStatement statement;
    /** The map the user gave, taken out of the statement; null if there was none. */
    private final Map<String, String> given;
    private CdcOptions options;

    private LoggedSchemaStatement(AlterSchemaStatement statement) {
        super(statement.keyspaceName);
        this.statement = statement;
        this.given = takeOptions(attributes(statement));
    }

    public static AlterSchemaStatement of(AlterSchemaStatement statement) {
        boolean concernsLogs = statement instanceof CreateTableStatement || statement instanceof AlterTableStatement
                               || statement instanceof DropTableStatement || statement instanceof CreateViewStatement
                               || statement instanceof AlterViewStatement;
        return concernsLogs ? new LoggedSchemaStatement(statement) : statement;
    }

    private static Class<?> alterOptions() {
        for (Class<?> kind : AlterTableStatement.class.getDeclaredClasses())
            if (kind.getSimpleName().equals("AlterOptions"))
                return kind;
        throw new ExceptionInInitializerError("AlterTableStatement has no AlterOptions");
    }

    private static TableAttributes attributes(AlterSchemaStatement statement) {
        Field field = statement instanceof CreateTableStatement ? CREATE_ATTRIBUTES
                      : statement instanceof CreateViewStatement ? CREATE_VIEW_ATTRIBUTES
                      : statement instanceof AlterViewStatement ? ALTER_VIEW_ATTRIBUTES
                      : ALTER_ATTRIBUTES.getDeclaringClass().isInstance(statement) ? ALTER_ATTRIBUTES : null;
        return field == null ? null : (TableAttributes) Hidden.get(field, statement);
    }

    /** A boolean is Cassandra's own option of the same name and stays where it is. */
    @SuppressWarnings("unchecked")
    private static Map<String, String> takeOptions(TableAttributes attributes) {
        if (attributes == null || !attributes.hasProperty(CdcOptions.EXTENSION))
            return null;
        Object value = ((Map<String, Object>) Hidden.get(PROPERTIES, attributes)).get(CdcOptions.EXTENSION);
        if (!(value instanceof Map))
            return null;
        attributes.removeProperty(CdcOptions.EXTENSION);
        return (Map<String, String>) value;
    }

    @Override
    public void authorize(ClientState client) {
        statement.authorize(client);
    }

    @Override
    public void validate(ClientState client) {
        super.validate(client);
        if (given != null)
            options = validOptions();
        if (statement instanceof CreateViewStatement)
            refuseViewOfLog((String) Hidden.get(CREATE_VIEW_BASE, statement));
        statement.validate(client);
    }

    private CdcOptions validOptions() {
        CdcOptions valid = CdcOptions.parse(given);
        if (statement instanceof CreateViewStatement || statement instanceof AlterViewStatement)
            throw ire("Cannot enable CDC for a materialized view");
        if (statement instanceof AlterTableStatement && given.keySet().stream().noneMatch("enabled"::equalsIgnoreCase))
            throw ire("Altering CDC options requires specifying \"enabled\" flag");
        return valid;
    }

    private void refuseViewOfLog(String table) {
        if (LogSchema.hasLogName(table)
            && Schema.instance.getTableMetadata(keyspaceName, LogSchema.baseName(table)) != null)
            throw ire("Materialized views cannot be created on CDC Log tables");
    }

    @Override
    public Keyspaces apply(Keyspaces schema) {
        KeyspaceMetadata before = schema.getNullable(keyspaceName);
        if (before != null && COLUMN_CHANGES.contains(statement.getClass().getSimpleName()))
            LogSchemaChange.refuseColumns(before, table(), statement.getClass().getSimpleName().equals(RENAMING));
        Keyspaces changed = statement.apply(schema);
        KeyspaceMetadata after = changed.getNullable(keyspaceName);
        if (before == null || isRepeatedCreate(before))
            return changed;
        return changed.withAddedOrUpdated(LogSchemaChange.complete(before, after, table(), options));
    }

    /** IF NOT EXISTS of a table that exists changes nothing, not even its options. */
    private boolean isRepeatedCreate(KeyspaceMetadata before) {
        return statement instanceof CreateTableStatement && before.hasTable(table());
    }

    /** The table that options are for, or null if the statement takes none. */
    private String table() {
        if (statement instanceof CreateTableStatement)
            return (String) Hidden.get(CREATE_NAME, statement);
        return statement instanceof AlterTableStatement ? ((AlterTableStatement) statement).tableName : null;
    }

    @Override
    SchemaChange schemaChangeEvent(KeyspacesDiff diff) {
        return statement.schemaChangeEvent(diff);
    }

    @Override
    Set<IResource> createdResources(KeyspacesDiff diff) {
        return statement.createdResources(diff);
    }

    @Override
    Set<String> clientWarnings(KeyspacesDiff diff) {
        return statement.clientWarnings(diff);
    }

    @Override
    public AuditLogContext getAuditLogContext() {
        return statement.getAuditLogContext();
    }
}
