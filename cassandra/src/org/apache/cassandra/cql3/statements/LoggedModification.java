package org.apache.cassandra.cql3.statements;

import java.util.Collections;
import java.util.EnumSet;
import java.util.List;

import dev.penstock.cassandra.LogContext;

import org.apache.cassandra.cql3.QueryOptions;
import org.apache.cassandra.db.ConsistencyLevel;
import org.apache.cassandra.db.IMutation;
import org.apache.cassandra.db.guardrails.Guardrails;
import org.apache.cassandra.exceptions.InvalidRequestException;
import org.apache.cassandra.metrics.ClientRequestSizeMetrics;
import org.apache.cassandra.service.ClientState;
import org.apache.cassandra.service.QueryState;
import org.apache.cassandra.service.StorageProxy;
import org.apache.cassandra.transport.Dispatcher;
import org.apache.cassandra.transport.messages.ResultMessage;

/** An INSERT, UPDATE or DELETE on a table with a log: base table and log are written together. */
public final class LoggedModification extends ForwardingStatement {
    private final ModificationStatement statement;

    public LoggedModification(ModificationStatement statement) {
        super(statement);
        this.statement = statement;
    }

    @Override
    public ResultMessage execute(QueryState state, QueryOptions options, Dispatcher.RequestTime requestTime) {
        if (options.getConsistency() == null)
            throw new InvalidRequestException("Invalid empty consistency level");
        Guardrails.writeConsistencyLevels.guard(EnumSet.of(options.getConsistency(), options.getSerialConsistency()),
                                                state.getClientState());
        if (statement.hasConditions())
            return new LoggedCas(Hidden.casRequest(statement, state, options), options, state, requestTime)
                .execute(statement.getColumnsWithConditions(), false);
        write(state, options, requestTime);
        return null;
    }

    private void write(QueryState state, QueryOptions options, Dispatcher.RequestTime requestTime) {
        ConsistencyLevel level = options.getConsistency();
        level.validateForWrite();
        ClientState client = state.getClientState();
        statement.validateDiskUsage(options, client);
        statement.validateTimestamp(state, options);

        long now = options.getNowInSeconds(state);
        RecordedWrites writes = new RecordedWrites(
            Collections.singletonMap(statement.metadata().id, statement.updatedColumns()),
            new LogContext(level, now, requestTime));
        statement.addUpdates(writes, statement.buildPartitionKeyNames(options, client), client, options, false,
                             options.getTimestamp(state), now, requestTime);
        List<IMutation> mutations = writes.toMutations(client);
        if (mutations.isEmpty())
            return;
        StorageProxy.mutateWithTriggers(mutations, level, false, requestTime);
        ClientRequestSizeMetrics.recordRowAndColumnCountMetrics(writes.base());
    }
}
