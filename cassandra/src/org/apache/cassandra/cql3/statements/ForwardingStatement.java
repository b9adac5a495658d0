package org.apache.cassandra.cql3.statements;

import java.util.List;

import org.apache.cassandra.audit.AuditLogContext;
import org.apache.cassandra.cql3.CQLStatement;
import org.apache.cassandra.cql3.ColumnSpecification;
import org.apache.cassandra.cql3.QueryOptions;
import org.apache.cassandra.cql3.functions.Function;
import org.apache.cassandra.service.ClientState;
import org.apache.cassandra.service.QueryState;
import org.apache.cassandra.transport.messages.ResultMessage;

/** A statement that is executed differently and is in all else the one it wraps: checks, bind variables, audit. */
public abstract class ForwardingStatement implements CQLStatement {
    private final CQLStatement statement;

    protected ForwardingStatement(CQLStatement statement) {
        this.statement = statement;
    }

    @Override
    public List<ColumnSpecification> getBindVariables() {
        return statement.getBindVariables();
    }

    @Override
    public short[] getPartitionKeyBindVariableIndexes() {
        return statement.getPartitionKeyBindVariableIndexes();
    }

    @Override
    public Iterable<Function> getFunctions() {
        return statement.getFunctions();
    }

    @Override
    public void authorize(ClientState state) {
        statement.authorize(state);
    }

    @Override
    public void validate(ClientState state) {
        statement.validate(state);
    }

    @Override
    public ResultMessage executeLocally(QueryState state, QueryOptions options) {
        return statement.executeLocally(state, options);
    }

    @Override
    public AuditLogContext getAuditLogContext() {
        return statement.getAuditLogContext();
    }

    @Override
    public boolean hasConditions() {
        return statement.hasConditions();
    }
}
