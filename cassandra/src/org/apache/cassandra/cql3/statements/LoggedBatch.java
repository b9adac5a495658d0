package org.apache.cassandra.cql3.statements;

import java.nio.ByteBuffer;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;

import dev.penstock.cassandra.LogContext;

import org.apache.cassandra.cql3.Attributes;
import org.apache.cassandra.cql3.BatchQueryOptions;
import org.apache.cassandra.cql3.QueryOptions;
import org.apache.cassandra.db.IMutation;
import org.apache.cassandra.db.guardrails.Guardrails;
import org.apache.cassandra.exceptions.InvalidRequestException;
import org.apache.cassandra.metrics.ClientRequestSizeMetrics;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.service.ClientState;
import org.apache.cassandra.service.QueryState;
import org.apache.cassandra.service.StorageProxy;
import org.apache.cassandra.transport.Dispatcher;
import org.apache.cassandra.transport.messages.ResultMessage;
import org.apache.cassandra.utils.Pair;

/** A batch in which at least one statement is on a table with a log. */
public final class LoggedBatch extends ForwardingStatement {
    private final BatchStatement batch;

    public LoggedBatch(BatchStatement batch) {
        super(batch);
        this.batch = batch;
    }

    @Override
    public ResultMessage execute(QueryState state, QueryOptions options, Dispatcher.RequestTime requestTime) {
        return execute(state, BatchQueryOptions.withoutPerStatementVariables(options), requestTime);
    }

    public ResultMessage execute(QueryState state, BatchQueryOptions options, Dispatcher.RequestTime requestTime) {
        check(state.getClientState(), options);
        if (batch.hasConditions())
            return writeConditionally(state, options, requestTime);
        write(state, options, requestTime);
        return new ResultMessage.Void();
    }

    private void check(ClientState client, BatchQueryOptions options) {
        if (options.getConsistency() == null)
            throw new InvalidRequestException("Invalid empty consistency level");
        if (options.getSerialConsistency() == null)
            throw new InvalidRequestException("Invalid empty serial consistency level");
        Guardrails.writeConsistencyLevels.guard(EnumSet.of(options.getConsistency(), options.getSerialConsistency()),
                                                client);
        List<ModificationStatement> statements = batch.getStatements();
        for (int i = 0; i < statements.size(); i++)
            statements.get(i).validateDiskUsage(options.forStatement(i), client);
    }

    private ResultMessage writeConditionally(QueryState state, BatchQueryOptions options,
                                             Dispatcher.RequestTime requestTime) {
        Pair<CQL3CasRequest, Set<ColumnMetadata>> request = Hidden.casRequest(batch, options, state);
        return new LoggedCas(request.left, options.forStatement(0), state, requestTime).execute(request.right, true);
    }

    private void write(QueryState state, BatchQueryOptions options, Dispatcher.RequestTime requestTime) {
        LogContext context = new LogContext(options.getConsistency(), options.getNowInSeconds(state), requestTime);
        RecordedWrites writes = new RecordedWrites(Hidden.columns(batch), context);
        addUpdates(writes, state, options, requestTime);
        List<IMutation> mutations = writes.toMutations(state.getClientState());
        if (mutations.isEmpty())
            return;
        Hidden.checkBatch(batch, writes.base());
        // The user's choice decides about the batchlog: a log row does not turn a plain batch into an atomic one.
        boolean atomic = batch.type == BatchStatement.Type.LOGGED && writes.base().size() > 1;
        StorageProxy.mutateWithTriggers(mutations, options.getConsistency(), atomic, requestTime);
        ClientRequestSizeMetrics.recordRowAndColumnCountMetrics(writes.base());
    }

    private void addUpdates(RecordedWrites writes, QueryState state, BatchQueryOptions options,
                            Dispatcher.RequestTime requestTime) {
        Attributes attributes = Hidden.attributes(batch);
        ClientState client = state.getClientState();
        List<ModificationStatement> statements = batch.getStatements();
        for (int i = 0; i < statements.size(); i++) {
            ModificationStatement statement = statements.get(i);
            QueryOptions own = options.forStatement(i);
            List<ByteBuffer> keys = statement.buildPartitionKeyNames(own, client);
            statement.addUpdates(writes, keys, client, own, false,
                                 attributes.getTimestamp(options.getTimestamp(state), own),
                                 options.getNowInSeconds(state), requestTime);
        }
    }
}
