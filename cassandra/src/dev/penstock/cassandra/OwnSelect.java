package dev.penstock.cassandra;

import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.apache.cassandra.cql3.CQLStatement;
import org.apache.cassandra.cql3.QueryProcessor;
import org.apache.cassandra.cql3.ResultSet;
import org.apache.cassandra.cql3.statements.ForwardingStatement;
import org.apache.cassandra.cql3.statements.SelectStatement;
import org.apache.cassandra.exceptions.InvalidRequestException;
import org.apache.cassandra.exceptions.SyntaxException;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.service.ClientState;

/**
 * A SELECT from a function of a table, {@code SELECT columns FROM NAME(table) WHERE ...}, which the node does not know.
 *
 * It is prepared as the same SELECT from the table, with the permissions that this needs. The WHERE clause has no
 * conditions on clustering columns and values.
 */
abstract class OwnSelect extends ForwardingStatement {
    private static final String NAME = "\"(?:[^\"]|\"\")+\"|\\w+";

    final SelectStatement select;

    OwnSelect(SelectStatement select) {
        super(select);
        this.select = select;
    }

    abstract ResultSet.ResultMetadata metadata();

    /** Whether the table is as it was when this was prepared. */
    boolean isCurrent() {
        return Schema.instance.getTableMetadata(select.table.id) == select.table;
    }

    /** The statements with this function: groups of columns, of the table, and of what follows. */
    static Pattern of(String function) {
        return Pattern.compile("\\s*SELECT\\b([^']*?)\\bFROM\\s+" + function + "\\s*\\(\\s*((?:" + NAME
                               + ")(?:\\s*\\.\\s*(?:" + NAME + "))?)\\s*\\)(.*)",
                               Pattern.CASE_INSENSITIVE | Pattern.DOTALL);
    }

    /** The SELECT from the table, of these columns. */
    static SelectStatement select(String columns, Matcher parts, String function, ClientState client) {
        SelectStatement.RawStatement raw = raw("SELECT " + columns + " FROM " + parts.group(2) + parts.group(3));
        if (raw.limit != null || raw.perPartitionLimit != null || !raw.parameters.orderings.isEmpty()
            || !raw.parameters.groups.isEmpty() || raw.parameters.isDistinct || raw.parameters.isJson)
            throw new InvalidRequestException(function + " takes no LIMIT, ORDER BY, GROUP BY, DISTINCT and JSON");
        raw.setKeyspace(client);
        SelectStatement select = raw.prepare(client);
        if (select.getRestrictions().hasClusteringColumnsRestrictions()
            || select.getRestrictions().hasNonPrimaryKeyRestrictions() || select.table.isVirtual())
            throw new InvalidRequestException(function + " takes one partition key or a range of token() of a table");
        return select;
    }

    static SelectStatement.RawStatement raw(String text) {
        CQLStatement.Raw raw = QueryProcessor.parseStatement(text);
        if (raw instanceof SelectStatement.RawStatement)
            return (SelectStatement.RawStatement) raw;
        throw new SyntaxException("Not a SELECT: " + text);
    }
}
