package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.Map;

import org.apache.cassandra.cql3.BatchQueryOptions;
import org.apache.cassandra.cql3.CQLStatement;
import org.apache.cassandra.cql3.QueryHandler;
import org.apache.cassandra.cql3.QueryOptions;
import org.apache.cassandra.cql3.QueryProcessor;
import org.apache.cassandra.cql3.statements.BatchStatement;
import org.apache.cassandra.cql3.statements.DescribeStatement;
import org.apache.cassandra.cql3.statements.LoggedBatch;
import org.apache.cassandra.cql3.statements.LoggedModification;
import org.apache.cassandra.cql3.statements.ModificationStatement;
import org.apache.cassandra.cql3.statements.schema.AlterSchemaStatement;
import org.apache.cassandra.cql3.statements.schema.LoggedSchemaStatement;
import org.apache.cassandra.service.ClientState;
import org.apache.cassandra.service.QueryState;
import org.apache.cassandra.transport.Dispatcher;
import org.apache.cassandra.transport.messages.ResultMessage;
import org.apache.cassandra.utils.MD5Digest;

/**
 * The plugin's entrance: {@code -Dcassandra.custom_query_handler_class=dev.penstock.cassandra.CdcQueryHandler}.
 *
 * Every statement of a client passes here. Those that concern a change log are wrapped; the node's own processor
 * executes all of them, so permissions, metrics, auditing and limits stay its own.
 */
public final class CdcQueryHandler implements QueryHandler {
    private final QueryProcessor node = QueryProcessor.instance;
    private final PreparedSchemaStatements preparedSchema = new PreparedSchemaStatements();

    public CdcQueryHandler() {
        NodeVersion.check();
        Generations.startWithNode();
    }

    @Override
    public CQLStatement parse(String query, QueryState state, QueryOptions options) {
        Generations.start();
        CQLStatement fragments =
            FragmentsStatement.parse(query, state.getClientState().cloneWithKeyspaceIfSet(options.getKeyspace()));
        return fragments != null ? fragments : node.parse(query, state, options);
    }

    @Override
    public ResultMessage process(CQLStatement statement, QueryState state, QueryOptions options,
                                 Map<String, ByteBuffer> payload, Dispatcher.RequestTime requestTime) {
        return node.process(logged(statement), state, options, payload, requestTime);
    }

    @Override
    public ResultMessage.Prepared prepare(String query, ClientState state, Map<String, ByteBuffer> payload) {
        Generations.start();
        ResultMessage.Prepared schema = preparedSchema.prepare(query, state);
        return schema != null ? schema : node.prepare(query, state, payload);
    }

    @Override
    public Prepared getPrepared(MD5Digest id) {
        Generations.start();
        Prepared prepared = node.getPrepared(id);
        return prepared != null ? prepared : preparedSchema.get(id);
    }

    @Override
    public ResultMessage processPrepared(CQLStatement statement, QueryState state, QueryOptions options,
                                         Map<String, ByteBuffer> payload, Dispatcher.RequestTime requestTime) {
        return node.processPrepared(logged(statement), state, options, payload, requestTime);
    }

    @Override
    public ResultMessage processBatch(BatchStatement batch, QueryState state, BatchQueryOptions options,
                                      Map<String, ByteBuffer> payload, Dispatcher.RequestTime requestTime) {
        if (!isLogged(batch))
            return node.processBatch(batch, state, options, payload, requestTime);
        ClientState client = state.getClientState().cloneWithKeyspaceIfSet(options.getKeyspace());
        batch.authorize(client);
        batch.validate();
        batch.validate(client);
        return new LoggedBatch(batch).execute(state, options, requestTime);
    }

    private static CQLStatement logged(CQLStatement statement) {
        if (statement instanceof ModificationStatement && isLogged((ModificationStatement) statement))
            return new LoggedModification((ModificationStatement) statement);
        if (statement instanceof BatchStatement && isLogged((BatchStatement) statement))
            return new LoggedBatch((BatchStatement) statement);
        if (statement instanceof AlterSchemaStatement)
            return LoggedSchemaStatement.of((AlterSchemaStatement) statement);
        if (statement instanceof DescribeStatement)
            return new DescribedSchema((DescribeStatement<?>) statement);
        return statement;
    }

    private static boolean isLogged(ModificationStatement statement) {
        return LogTables.of(statement.metadata().id) != null;
    }

    private static boolean isLogged(BatchStatement batch) {
        for (ModificationStatement statement : batch.getStatements())
            if (isLogged(statement))
                return true;
        return false;
    }
}
