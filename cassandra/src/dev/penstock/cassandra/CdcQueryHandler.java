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
import org.apache.cassandra.cql3.statements.DescribeWithLogs;
import org.apache.cassandra.cql3.statements.LoggedBatch;
import org.apache.cassandra.cql3.statements.LoggedModification;
import org.apache.cassandra.cql3.statements.ModificationStatement;
import org.apache.cassandra.cql3.statements.SelectStatement;
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
    private final OwnPreparedStatements ownPrepared = new OwnPreparedStatements();

    public CdcQueryHandler() {
        NodeVersion.check();
        ScyllaTables.register();
        Generations.startWithNode();
    }

    @Override
    public CQLStatement parse(String query, QueryState state, QueryOptions options) {
        Generations.start();
        String known = BypassCache.removed(query);
        ClientState client = state.getClientState().cloneWithKeyspaceIfSet(options.getKeyspace());
        CQLStatement own = OwnPreparedStatements.select(known, client);
        return own != null ? own : node.parse(known, state, options);
    }

    @Override
    public ResultMessage process(CQLStatement statement, QueryState state, QueryOptions options,
                                 Map<String, ByteBuffer> payload, Dispatcher.RequestTime requestTime) {
        return node.process(logged(statement), state, options, payload, requestTime);
    }

    @Override
    public ResultMessage.Prepared prepare(String query, ClientState state, Map<String, ByteBuffer> payload) {
        Generations.start();
        String known = BypassCache.removed(query);
        ResultMessage.Prepared own = ownPrepared.prepare(known, state);
        return own != null ? own : node.prepare(known, state, payload);
    }

    @Override
    public Prepared getPrepared(MD5Digest id) {
        Generations.start();
        Prepared prepared = node.getPrepared(id);
        return prepared != null ? prepared : ownPrepared.get(id);
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
        if (statement instanceof SelectStatement && ScyllaTables.isRead((SelectStatement) statement))
            return new ScyllaTables.Select((SelectStatement) statement);
        if (statement instanceof DescribeStatement)
            return new DescribeWithLogs<>((DescribeStatement<?>) statement);
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
