package org.apache.cassandra.cql3.statements;

import java.util.ArrayList;
import java.util.List;

import dev.penstock.cassandra.LogContext;
import dev.penstock.cassandra.LogTable;
import dev.penstock.cassandra.LogTables;
import dev.penstock.cassandra.LogWriter;
import dev.penstock.cassandra.PartitionChange;

import org.apache.cassandra.cql3.QueryOptions;
import org.apache.cassandra.cql3.ResultSet;
import org.apache.cassandra.db.IMutation;
import org.apache.cassandra.db.SinglePartitionReadCommand;
import org.apache.cassandra.db.partitions.FilteredPartition;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.RowIterator;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.service.CASRequest;
import org.apache.cassandra.service.ClientState;
import org.apache.cassandra.service.QueryState;
import org.apache.cassandra.service.StorageProxy;
import org.apache.cassandra.service.paxos.Ballot;
import org.apache.cassandra.transport.Dispatcher;
import org.apache.cassandra.transport.messages.ResultMessage;

/**
 * A conditional write on a table with a log.
 *
 * Each attempt of the node asks for the updates under a new ballot; the log rows of the latest attempt are kept, with
 * their images read before the commit, and written after the commit, if the condition held. A node that dies between
 * the two leaves a base row without its log row, as does an attempt whose outcome stays unknown: the client gets no
 * success for either.
 */
final class LoggedCas implements CASRequest {
    private final CQL3CasRequest request;
    private final QueryOptions options;
    private final QueryState state;
    private final Dispatcher.RequestTime requestTime;
    private final long timestamp;
    private final long nowInSeconds;
    private final List<IMutation> log = new ArrayList<>(1);

    LoggedCas(CQL3CasRequest request, QueryOptions options, QueryState state, Dispatcher.RequestTime requestTime) {
        this.request = request;
        this.options = options;
        this.state = state;
        this.requestTime = requestTime;
        this.timestamp = options.getTimestamp(state);
        this.nowInSeconds = options.getNowInSeconds(state);
    }

    ResultMessage execute(Iterable<ColumnMetadata> columnsWithConditions, boolean isBatch) {
        TableMetadata table = request.metadata;
        try (RowIterator failed = StorageProxy.cas(table.keyspace, table.name, request.key, this,
                                                   options.getSerialConsistency(), options.getConsistency(),
                                                   state.getClientState(), nowInSeconds, requestTime)) {
            if (failed == null && !log.isEmpty())
                StorageProxy.mutate(log, options.getConsistency(), requestTime);
            ResultSet result = ModificationStatement.buildCasResultSet(table.keyspace, table.name, failed,
                                                                       columnsWithConditions, isBatch, state, options);
            return new ResultMessage.Rows(result);
        }
    }

    @Override
    public SinglePartitionReadCommand readCommand(long nowInSec) {
        return request.readCommand(nowInSec);
    }

    @Override
    public boolean appliesTo(FilteredPartition current) {
        return request.appliesTo(current);
    }

    @Override
    public PartitionUpdate makeUpdates(FilteredPartition current, ClientState client, Ballot ballot) {
        PartitionUpdate update = request.makeUpdates(current, client, ballot);
        LogTable table = LogTables.of(update.metadata().id);
        log.clear();
        if (table != null)
            LogWriter.write(table, PartitionChange.of(update, ballot.unixMicros() - timestamp),
                            new LogContext(options.getConsistency(), nowInSeconds, requestTime), log);
        return update;
    }
}
