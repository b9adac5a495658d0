package org.apache.cassandra.cql3.statements;

import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.stream.Stream;

import dev.penstock.cassandra.DescribedSchema;

import org.apache.cassandra.cql3.ColumnSpecification;
import org.apache.cassandra.schema.Keyspaces;
import org.apache.cassandra.service.ClientState;

/** A DESCRIBE that shows logs and the options that make them. The node does the paging, by what is shown. */
public final class DescribeWithLogs<T> extends DescribeStatement<Object> {
    private static final Field INTERNALS = Hidden.field(DescribeStatement.class, "includeInternalDetails");

    private final DescribeStatement<T> statement;

    public DescribeWithLogs(DescribeStatement<T> statement) {
        this.statement = statement;
        if ((boolean) Hidden.get(INTERNALS, statement))
            withInternalDetails();
    }

    @Override
    protected Stream<?> describe(ClientState client, Keyspaces keyspaces) {
        return DescribedSchema.shown(statement.describe(client, keyspaces), statement instanceof Listing);
    }

    @Override
    protected List<ColumnSpecification> metadata(ClientState client) {
        return statement.metadata(client);
    }

    @SuppressWarnings("unchecked")
    @Override
    protected List<ByteBuffer> toRow(Object element, boolean withInternals) {
        return statement.toRow((T) element, withInternals);
    }
}
