package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.apache.cassandra.auth.Permission;
import org.apache.cassandra.cql3.ColumnIdentifier;
import org.apache.cassandra.cql3.ColumnSpecification;
import org.apache.cassandra.cql3.QueryOptions;
import org.apache.cassandra.cql3.ResultSet;
import org.apache.cassandra.cql3.statements.SelectStatement;
import org.apache.cassandra.db.LivenessInfo;
import org.apache.cassandra.db.ReadQuery;
import org.apache.cassandra.db.marshal.LongType;
import org.apache.cassandra.db.partitions.PartitionIterator;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.db.rows.RowIterator;
import org.apache.cassandra.db.transform.Transformation;
import org.apache.cassandra.exceptions.InvalidRequestException;
import org.apache.cassandra.service.ClientState;
import org.apache.cassandra.service.QueryState;
import org.apache.cassandra.service.pager.QueryPager;
import org.apache.cassandra.transport.Dispatcher;
import org.apache.cassandra.transport.messages.ResultMessage;

/**
 * {@code SELECT ... FROM ROWS_WITH_MARKERS(table)}: the rows of a SELECT, with when each was inserted.
 *
 * CQL shows a row that an INSERT made and one that only UPDATEs made alike, but the second one is gone with its last
 * value. The INSERT's row marker is what differs, and a read has it. Two columns follow those that are selected: when
 * the row was inserted, in microseconds, and when that expires, in seconds, both since 1970; both are null for a row
 * that only UPDATEs made, and for one that has only static values.
 */
final class MarkedSelect extends OwnSelect {
    private static final String FUNCTION = "ROWS_WITH_MARKERS";
    private static final Pattern TEXT = of(FUNCTION);

    private final List<ColumnSpecification> columns;

    private MarkedSelect(SelectStatement select) {
        super(select);
        columns = new ArrayList<>(select.getSelection().getResultMetadata().requestNames());
        for (String name : List.of("row_inserted", "row_expires"))
            columns.add(new ColumnSpecification(select.table.keyspace, select.table.name,
                                                new ColumnIdentifier(name, true), LongType.instance));
    }

    /** The statement, or null if the text is another one. */
    static MarkedSelect parse(String query, ClientState client) {
        Matcher matcher = TEXT.matcher(query);
        if (!matcher.matches())
            return null;
        SelectStatement select = select(matcher.group(1), matcher, FUNCTION, client);
        if (select.getSelection().isAggregate())
            throw new InvalidRequestException(FUNCTION + " takes no aggregates: they have no rows");
        return new MarkedSelect(select);
    }

    @Override
    ResultSet.ResultMetadata metadata() {
        return new ResultSet.ResultMetadata(columns);
    }

    @Override
    public ResultMessage execute(QueryState state, QueryOptions options, Dispatcher.RequestTime requestTime) {
        options.getConsistency().validateForRead();
        ClientState client = state.getClientState();
        long now = options.getNowInSeconds(state);
        ReadQuery query = select.getQuery(options, now);
        if (options.getPageSize() <= 0)
            try (PartitionIterator rows = query.execute(options.getConsistency(), client, requestTime)) {
                return new ResultMessage.Rows(marked(rows, now, client, metadata()));
            }
        QueryPager pager = query.getPager(options.getPagingState(), options.getProtocolVersion());
        ResultSet.ResultMetadata metadata = metadata();
        ResultSet result;
        try (PartitionIterator rows = pager.fetchPage(options.getPageSize(), options.getConsistency(), client,
                                                      requestTime)) {
            result = marked(rows, now, client, metadata);
        }
        // What is left is known when the page is read.
        if (!pager.isExhausted())
            metadata.setHasMorePages(pager.state());
        return new ResultMessage.Rows(result);
    }

    @Override
    public ResultMessage executeLocally(QueryState state, QueryOptions options) {
        throw new InvalidRequestException(FUNCTION + " is for clients");
    }

    private ResultSet marked(PartitionIterator rows, long now, ClientState client, ResultSet.ResultMetadata metadata) {
        Markers markers = new Markers(now);
        boolean unmask = !select.table.hasMaskedColumns() || client.hasTablePermission(select.table, Permission.UNMASK);
        ResultSet result = select.process(Transformation.apply(rows, markers), now, unmask, client);
        if (result.rows.size() != markers.found.size())
            throw new IllegalStateException(result.rows.size() + " rows, and " + markers.found.size() + " markers");
        List<List<ByteBuffer>> marked = new ArrayList<>(result.rows.size());
        for (int i = 0; i < result.rows.size(); i++) {
            List<ByteBuffer> row = new ArrayList<>(result.rows.get(i));
            LivenessInfo marker = markers.found.get(i);
            row.add(marker == null ? null : LongType.instance.decompose(marker.timestamp()));
            row.add(marker == null || !marker.isExpiring() ? null
                                                           : LongType.instance.decompose(marker.localExpirationTime()));
            marked.add(row);
        }
        return new ResultSet(metadata, marked);
    }

    /** Looks at the rows while they pass: one marker, or null, for each row of the result. */
    private static final class Markers extends Transformation<RowIterator> {
        private final long now;
        private final List<LivenessInfo> found = new ArrayList<>();
        private int before;

        Markers(long now) {
            this.now = now;
        }

        @Override
        protected RowIterator applyToPartition(RowIterator partition) {
            before = found.size();
            return Transformation.apply(partition, this);
        }

        @Override
        protected Row applyToRow(Row row) {
            LivenessInfo marker = row.primaryKeyLivenessInfo();
            found.add(marker.isEmpty() || !marker.isLive(now) ? null : marker);
            return row;
        }

        @Override
        protected void onPartitionClose() {
            // A partition with only static values is one row of the result.
            if (found.size() == before)
                found.add(null);
        }
    }
}
