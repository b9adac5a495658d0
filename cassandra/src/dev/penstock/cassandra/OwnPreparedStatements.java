package dev.penstock.cassandra;

import com.github.benmanes.caffeine.cache.Cache;
import com.github.benmanes.caffeine.cache.Caffeine;

import org.apache.cassandra.cql3.CQLStatement;
import org.apache.cassandra.cql3.QueryHandler;
import org.apache.cassandra.cql3.QueryProcessor;
import org.apache.cassandra.cql3.ResultSet;
import org.apache.cassandra.cql3.statements.QualifiedStatement;
import org.apache.cassandra.cql3.statements.schema.AlterSchemaStatement;
import org.apache.cassandra.cql3.statements.schema.LoggedSchemaStatement;
import org.apache.cassandra.service.ClientState;
import org.apache.cassandra.transport.messages.ResultMessage;
import org.apache.cassandra.utils.MD5Digest;

/**
 * Prepared statements that the node cannot prepare, which are kept here: those with {@code cdc = {...}}, whose map the
 * node takes for an error, and SELECTs that it does not know. A client whose statement was forgotten prepares it again.
 */
final class OwnPreparedStatements {
    private static final int KEPT = 1000;

    private final Cache<MD5Digest, QueryHandler.Prepared> prepared = Caffeine.newBuilder().maximumSize(KEPT).build();

    QueryHandler.Prepared get(MD5Digest id) {
        QueryHandler.Prepared found = prepared.getIfPresent(id);
        boolean isOld = found != null && found.statement instanceof OwnSelect
                        && !((OwnSelect) found.statement).isCurrent();
        return isOld ? null : found;
    }

    /** The prepared statement, or null if it is one that the node can prepare. */
    ResultMessage.Prepared prepare(String query, ClientState client) {
        CQLStatement select = select(query, client);
        return select != null ? keep(query, select, client.getRawKeyspace()) : prepareSchema(query, client);
    }

    /** A SELECT that a node without the plugin does not know, or null if it is another statement. */
    static CQLStatement select(String query, ClientState client) {
        CQLStatement fragments = FragmentsStatement.parse(query, client);
        CQLStatement own = fragments != null ? fragments : MarkedSelect.parse(query, client);
        return own != null ? own : ScyllaTables.select(query, client);
    }

    private ResultMessage.Prepared prepareSchema(String query, ClientState client) {
        if (!query.contains("cdc") && !query.contains("CDC"))
            return null;
        CQLStatement.Raw raw = QueryProcessor.parseStatement(query);
        if (raw instanceof QualifiedStatement)
            ((QualifiedStatement) raw).setKeyspace(client);
        CQLStatement statement = raw.prepare(client);
        if (!(statement instanceof AlterSchemaStatement))
            return null;
        CQLStatement logged = LoggedSchemaStatement.of((AlterSchemaStatement) statement);
        if (logged == statement)
            return null;
        return keep(query, logged, client.getRawKeyspace());
    }

    private ResultMessage.Prepared keep(String query, CQLStatement statement, String keyspace) {
        ResultSet.ResultMetadata result = statement instanceof OwnSelect
                                          ? ((OwnSelect) statement).metadata()
                                          : ResultSet.ResultMetadata.fromPrepared(statement);
        MD5Digest id = MD5Digest.compute(keyspace == null ? query : keyspace + query);
        prepared.put(id, new QueryHandler.Prepared(statement, query, false, keyspace));
        return new ResultMessage.Prepared(id, result.getResultMetadataId(),
                                          ResultSet.PreparedMetadata.fromPrepared(statement), result);
    }
}
