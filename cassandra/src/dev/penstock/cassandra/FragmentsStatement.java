package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.apache.cassandra.cql3.ColumnIdentifier;
import org.apache.cassandra.cql3.ColumnSpecification;
import org.apache.cassandra.cql3.QueryOptions;
import org.apache.cassandra.cql3.ResultSet;
import org.apache.cassandra.cql3.selection.RawSelector;
import org.apache.cassandra.cql3.statements.SelectStatement;
import org.apache.cassandra.db.PartitionRangeReadCommand;
import org.apache.cassandra.db.ReadQuery;
import org.apache.cassandra.db.SinglePartitionReadCommand;
import org.apache.cassandra.db.marshal.AbstractType;
import org.apache.cassandra.db.marshal.ByteType;
import org.apache.cassandra.db.marshal.UTF8Type;
import org.apache.cassandra.exceptions.InvalidRequestException;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.service.ClientState;
import org.apache.cassandra.service.QueryState;
import org.apache.cassandra.service.pager.PagingState;
import org.apache.cassandra.transport.Dispatcher;
import org.apache.cassandra.transport.messages.ResultMessage;
import org.apache.cassandra.utils.FBUtilities;

/**
 * ScyllaDB's {@code SELECT ... FROM MUTATION_FRAGMENTS(table)}: what this node has stored of a table, with the markers
 * of rows, deletions, and the times of all cells.
 *
 * Columns and JSON are ScyllaDB's. One source is shown, "merged": memtables and sstables as a read merges them, with
 * the deletions that are kept. The WHERE clause has the partition key, or, which ScyllaDB lacks, a range of token();
 * it is prepared as that of a SELECT from the table, with the permissions that this needs.
 */
final class FragmentsStatement extends OwnSelect {
    private static final String FUNCTION = "MUTATION_FRAGMENTS";
    private static final Pattern TEXT = of(FUNCTION);

    private final List<ColumnSpecification> columns;
    private final List<Integer> places;

    private FragmentsStatement(SelectStatement select, List<String> names) {
        super(select);
        Map<String, AbstractType<?>> known = columnsOf(select.table);
        List<String> all = new ArrayList<>(known.keySet());
        columns = new ArrayList<>();
        places = new ArrayList<>();
        for (String name : names.isEmpty() ? all : names) {
            if (!known.containsKey(name))
                throw new InvalidRequestException("MUTATION_FRAGMENTS has no column " + name + ", but "
                                                  + String.join(", ", all));
            places.add(all.indexOf(name));
            columns.add(new ColumnSpecification(select.table.keyspace, select.table.name,
                                                new ColumnIdentifier(name, true), known.get(name)));
        }
    }

    /** The statement, or null if the text is another one. */
    static FragmentsStatement parse(String query, ClientState client) {
        Matcher matcher = TEXT.matcher(query);
        if (!matcher.matches())
            return null;
        return new FragmentsStatement(select("*", matcher, FUNCTION, client),
                                      names("SELECT " + matcher.group(1) + " FROM " + matcher.group(2)));
    }

    private static List<String> names(String text) {
        SelectStatement.RawStatement raw = raw(text);
        List<String> names = new ArrayList<>();
        for (RawSelector selector : raw.selectClause)
            names.add(selector.selectable.toString());
        if (raw.parameters.isDistinct || raw.parameters.isJson)
            throw new InvalidRequestException(FUNCTION + " takes no DISTINCT and JSON");
        return names;
    }

    private static Map<String, AbstractType<?>> columnsOf(TableMetadata table) {
        Map<String, AbstractType<?>> columns = new LinkedHashMap<>();
        for (ColumnMetadata column : table.partitionKeyColumns())
            columns.put(column.name.toString(), column.type);
        columns.put("mutation_source", UTF8Type.instance);
        columns.put("partition_region", ByteType.instance);
        for (ColumnMetadata column : table.clusteringColumns())
            columns.put(column.name.toString(), column.type.unwrap());
        columns.put("position_weight", ByteType.instance);
        columns.put("metadata", UTF8Type.instance);
        columns.put("mutation_fragment_kind", UTF8Type.instance);
        columns.put("value", UTF8Type.instance);
        return columns;
    }

    @Override
    ResultSet.ResultMetadata metadata() {
        return new ResultSet.ResultMetadata(columns);
    }

    @Override
    public ResultMessage execute(QueryState state, QueryOptions options, Dispatcher.RequestTime requestTime) {
        return read(options);
    }

    @Override
    public ResultMessage executeLocally(QueryState state, QueryOptions options) {
        return read(options);
    }

    private ResultMessage read(QueryOptions options) {
        ReadQuery query = select.getQuery(options, FBUtilities.nowInSeconds());
        boolean withValues = columns.stream().anyMatch(column -> column.name.toString().equals("value"));
        FragmentPage page = new FragmentPage(select.table, options.getPageSize(), withValues);
        FragmentPlace place = FragmentPlace.of(options.getPagingState());
        if (query instanceof PartitionRangeReadCommand)
            page.readRange((PartitionRangeReadCommand) query, place);
        else if (query instanceof SinglePartitionReadCommand.Group)
            page.readPartition(onlyKey((SinglePartitionReadCommand.Group) query), place);
        return new ResultMessage.Rows(new ResultSet(metadata(page.next()), selected(page.rows())));
    }

    private static SinglePartitionReadCommand onlyKey(SinglePartitionReadCommand.Group group) {
        if (group.queries.size() != 1)
            throw new InvalidRequestException("MUTATION_FRAGMENTS takes one partition key at a time here");
        return group.queries.get(0);
    }

    private ResultSet.ResultMetadata metadata(FragmentPlace next) {
        ResultSet.ResultMetadata metadata = metadata();
        if (next != null)
            metadata.setHasMorePages(new PagingState(next.bytes(), null, Integer.MAX_VALUE, Integer.MAX_VALUE));
        return metadata;
    }

    private List<List<ByteBuffer>> selected(List<List<ByteBuffer>> rows) {
        List<List<ByteBuffer>> selected = new ArrayList<>(rows.size());
        for (List<ByteBuffer> row : rows) {
            List<ByteBuffer> some = new ArrayList<>(places.size());
            for (int place : places)
                some.add(row.get(place));
            selected.add(some);
        }
        return selected;
    }
}
