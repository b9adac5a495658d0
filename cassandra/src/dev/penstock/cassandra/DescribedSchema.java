package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Function;

import org.apache.cassandra.cql3.QueryOptions;
import org.apache.cassandra.cql3.ResultSet;
import org.apache.cassandra.cql3.statements.DescribeStatement;
import org.apache.cassandra.cql3.statements.ForwardingStatement;
import org.apache.cassandra.db.marshal.UTF8Type;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.service.QueryState;
import org.apache.cassandra.transport.Dispatcher;
import org.apache.cassandra.transport.messages.ResultMessage;
import org.apache.cassandra.utils.ByteBufferUtil;

/**
 * A DESCRIBE whose output creates the same tables again: options of a log as {@code cdc = {...}} instead of the bytes
 * that store them, and a log's own options as an ALTER after its base table. A log is created with its base table, so
 * its CREATE is shown as a comment, and only when it is asked for by name.
 */
final class DescribedSchema extends ForwardingStatement {
    private static final int KEYSPACE = 0;
    private static final int TYPE = 1;
    private static final int NAME = 2;
    private static final int CREATE = 3;
    /** Options are in alphabetical order, after those that only CREATE takes. */
    private static final String FIRST_OPTION = "additional_write_policy";

    private final DescribeStatement<?> statement;

    DescribedSchema(DescribeStatement<?> statement) {
        super(statement);
        this.statement = statement;
    }

    @Override
    public ResultMessage execute(QueryState state, QueryOptions options, Dispatcher.RequestTime requestTime) {
        ResultMessage result = statement.execute(state, options, requestTime);
        if (!(result instanceof ResultMessage.Rows))
            return result;
        ResultSet described = ((ResultMessage.Rows) result).result;
        return new ResultMessage.Rows(new ResultSet(described.metadata, rewrite(described.rows)));
    }

    private static List<List<ByteBuffer>> rewrite(List<List<ByteBuffer>> rows) {
        List<List<ByteBuffer>> rewritten = new ArrayList<>(rows.size());
        for (List<ByteBuffer> row : rows) {
            List<ByteBuffer> shown = shown(row, rows.size() == 1);
            if (shown != null)
                rewritten.add(shown);
        }
        return rewritten;
    }

    /** The row as it is to be shown, or null if it is not. */
    private static List<ByteBuffer> shown(List<ByteBuffer> row, boolean alone) {
        TableMetadata table = table(row);
        boolean isListing = row.size() <= CREATE;
        if (table == null)
            return row;
        if (LogSchema.isLog(table))
            return isListing || !alone ? null : withCreate(row, describeLog(text(row, CREATE), table));
        return isListing ? row : withCreate(row, describeBase(text(row, CREATE), table));
    }

    private static TableMetadata table(List<ByteBuffer> row) {
        if (row.size() <= NAME || !text(row, TYPE).equals("table"))
            return null;
        return Schema.instance.getTableMetadata(unquoted(text(row, KEYSPACE)), unquoted(text(row, NAME)));
    }

    private static String describeLog(String create, TableMetadata log) {
        return "/* Do NOT execute this statement! It only informs: a CDC log table is created together with its\n"
               + "   base table, when that is created with CDC enabled.\n\n" + options(create, log) + "\n*/";
    }

    private static String describeBase(String create, TableMetadata base) {
        String described = options(create, base);
        TableMetadata log = Schema.instance.getTableMetadata(base.keyspace, LogSchema.name(base.name));
        if (!CdcOptions.isEnabled(base) || log == null)
            return described;
        String created = options(log.toCqlString(false, false), log);
        return described + "\n\nALTER TABLE " + log + " WITH " + created.substring(created.indexOf(FIRST_OPTION));
    }

    /** The text of a table with this plugin's extensions taken out and the option they store put in. */
    private static String options(String create, TableMetadata table) {
        Map<String, ByteBuffer> others = new TreeMap<>(table.params.extensions);
        others.remove(CdcOptions.EXTENSION);
        others.remove(LogSchema.MARK);
        String extensions = quoted(others, value -> "0x" + ByteBufferUtil.bytesToHex(value), "");
        String described = create.replaceFirst("AND extensions = \\{[^}]*\\}", "AND extensions = " + extensions);
        CdcOptions options = CdcOptions.of(table);
        return options == null ? described
                               : described.replaceFirst("AND cdc = (true|false)",
                                                        "AND cdc = " + quoted(options.asMap(), value -> value, "'"));
    }

    private static <V> String quoted(Map<String, V> map, Function<V, String> text, String quote) {
        List<String> entries = new ArrayList<>();
        map.forEach((key, value) -> entries.add('\'' + key + "': " + quote + text.apply(value) + quote));
        return '{' + String.join(", ", entries) + '}';
    }

    private static List<ByteBuffer> withCreate(List<ByteBuffer> row, String create) {
        List<ByteBuffer> changed = new ArrayList<>(row);
        changed.set(CREATE, ByteBufferUtil.bytes(create));
        return changed;
    }

    private static String text(List<ByteBuffer> row, int column) {
        return UTF8Type.instance.compose(row.get(column));
    }

    private static String unquoted(String name) {
        return name.startsWith("\"") ? name.substring(1, name.length() - 1).replace("\"\"", "\"") : name;
    }
}
