package dev.penstock.cassandra;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.regex.Pattern;

import com.google.common.collect.Sets;

import org.apache.cassandra.cql3.CQLStatement;
import org.apache.cassandra.cql3.QueryOptions;
import org.apache.cassandra.cql3.QueryProcessor;
import org.apache.cassandra.cql3.statements.ForwardingStatement;
import org.apache.cassandra.cql3.statements.QualifiedStatement;
import org.apache.cassandra.cql3.statements.SelectStatement;
import org.apache.cassandra.db.DecoratedKey;
import org.apache.cassandra.db.marshal.BooleanType;
import org.apache.cassandra.db.marshal.Int32Type;
import org.apache.cassandra.db.marshal.MapType;
import org.apache.cassandra.db.marshal.UTF8Type;
import org.apache.cassandra.db.marshal.UUIDType;
import org.apache.cassandra.db.virtual.AbstractVirtualTable;
import org.apache.cassandra.db.virtual.SimpleDataSet;
import org.apache.cassandra.db.virtual.VirtualKeyspace;
import org.apache.cassandra.db.virtual.VirtualKeyspaceRegistry;
import org.apache.cassandra.dht.LocalPartitioner;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.SchemaConstants;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.service.ClientState;
import org.apache.cassandra.service.QueryState;
import org.apache.cassandra.transport.Dispatcher;
import org.apache.cassandra.transport.messages.ResultMessage;

/**
 * The tables {@code system_schema.scylla_keyspaces} and {@code scylla_tables}, which readers of a change log ask.
 *
 * They answer as ScyllaDB does for keyspaces without tablets: no keyspace has a row, and each table has one with a
 * version of its definition. No table has a partitioner of its own, so clients compute the tokens of a log as of any
 * other table, which is right here. The node keeps its system_schema as it is: a SELECT that names one of the tables is
 * sent to a virtual keyspace, and its result has ScyllaDB's names.
 */
final class ScyllaTables {
    private static final String SHOWN_KEYSPACE = SchemaConstants.SCHEMA_KEYSPACE_NAME;
    private static final String KEYSPACE = "system_scylla";
    private static final String KEYSPACES = "scylla_keyspaces";
    private static final String TABLES = "scylla_tables";
    private static final Pattern NAMES =
        Pattern.compile(KEYSPACES + '|' + TABLES, Pattern.CASE_INSENSITIVE);
    private static final MapType<String, String> TEXTS = MapType.getInstance(UTF8Type.instance, UTF8Type.instance, true);

    private ScyllaTables() {}

    static void register() {
        VirtualKeyspaceRegistry.instance.register(new VirtualKeyspace(KEYSPACE, List.of(new Keyspaces(), new Tables())));
    }

    private static TableMetadata keyspaces() {
        return table(KEYSPACES).addPartitionKeyColumn("keyspace_name", UTF8Type.instance)
                               .addRegularColumn("storage_type", UTF8Type.instance)
                               .addRegularColumn("storage_options", TEXTS)
                               .addRegularColumn("initial_tablets", Int32Type.instance)
                               .addRegularColumn("consistency", UTF8Type.instance).build();
    }

    private static TableMetadata tables() {
        return table(TABLES).addPartitionKeyColumn("keyspace_name", UTF8Type.instance)
                            .addClusteringColumn("table_name", UTF8Type.instance)
                            .addRegularColumn("version", UUIDType.instance)
                            .addRegularColumn("cdc", TEXTS)
                            .addRegularColumn("partitioner", UTF8Type.instance)
                            .addRegularColumn("in_memory", BooleanType.instance)
                            .addRegularColumn("committed_by_group0", BooleanType.instance)
                            .addRegularColumn("tablets", TEXTS)
                            .addRegularColumn("storage_engine", UTF8Type.instance)
                            .addRegularColumn("large_data_guardrails_enabled", BooleanType.instance).build();
    }

    private static TableMetadata.Builder table(String name) {
        return TableMetadata.builder(SHOWN_KEYSPACE, name).kind(TableMetadata.Kind.VIRTUAL)
                            .partitioner(new LocalPartitioner(UTF8Type.instance));
    }

    /** The statement if it is a SELECT from one of these tables, else null. */
    static CQLStatement select(String query, ClientState client) {
        if (!NAMES.matcher(query).find())
            return null;
        CQLStatement.Raw raw = QueryProcessor.parseStatement(query);
        if (!(raw instanceof SelectStatement.RawStatement))
            return null;
        QualifiedStatement named = (QualifiedStatement) raw;
        named.setKeyspace(client);
        if (!SHOWN_KEYSPACE.equals(named.keyspace()) || !(KEYSPACES.equals(named.name()) || TABLES.equals(named.name())))
            return null;
        named.setKeyspace(KEYSPACE);
        return raw.prepare(client);
    }

    static boolean isRead(SelectStatement statement) {
        return statement.table.isVirtual() && statement.table.keyspace.equals(SHOWN_KEYSPACE);
    }

    private static final class Keyspaces extends AbstractVirtualTable {
        Keyspaces() {
            super(keyspaces());
        }

        @Override
        public DataSet data() {
            return new SimpleDataSet(metadata());
        }
    }

    private static final class Tables extends AbstractVirtualTable {
        Tables() {
            super(tables());
        }

        @Override
        public DataSet data() {
            return rows(Schema.instance.getKeyspaces());
        }

        @Override
        public DataSet data(DecoratedKey keyspace) {
            String name = UTF8Type.instance.compose(keyspace.getKey());
            return rows(Sets.intersection(Schema.instance.getKeyspaces(), Set.of(name)));
        }

        private DataSet rows(Set<String> keyspaces) {
            SimpleDataSet rows = new SimpleDataSet(metadata());
            for (String keyspace : keyspaces)
                for (TableMetadata table : Schema.instance.getTablesAndViews(keyspace))
                    rows.row(keyspace, table.name).column("version", version(table));
            return rows;
        }

        /** The same on every node, and another after a change of the table. */
        private static UUID version(TableMetadata table) {
            String definition = table.id + table.toCqlString(true, true);
            return UUID.nameUUIDFromBytes(definition.getBytes(StandardCharsets.UTF_8));
        }
    }

    /** A SELECT from these tables. Every user may read them, as the node's own tables of the schema. */
    static final class Select extends ForwardingStatement {
        private final SelectStatement statement;

        Select(SelectStatement statement) {
            super(statement);
            this.statement = statement;
        }

        @Override
        public void authorize(ClientState client) {
            client.validateLogin();
        }

        @Override
        public ResultMessage execute(QueryState state, QueryOptions options, Dispatcher.RequestTime requestTime) {
            return statement.execute(state, options, requestTime);
        }
    }
}
