package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Date;
import java.util.List;
import java.util.Set;
import java.util.TreeMap;

import org.apache.cassandra.cql3.QueryProcessor;
import org.apache.cassandra.cql3.UntypedResultSet;
import org.apache.cassandra.cql3.statements.schema.CreateTableStatement;
import org.apache.cassandra.db.ConsistencyLevel;
import org.apache.cassandra.db.marshal.BytesType;
import org.apache.cassandra.schema.Keyspaces;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.SchemaConstants;
import org.apache.cassandra.schema.SchemaTransformations;
import org.apache.cassandra.schema.TableId;
import org.apache.cassandra.schema.TableMetadata;

/** The two tables in which readers find the generations and their streams. */
final class GenerationTables {
    private static final String KEYSPACE = SchemaConstants.DISTRIBUTED_KEYSPACE_NAME;
    private static final String TIMES = "cdc_generation_timestamps";
    private static final String STREAMS = "cdc_streams_descriptions_v2";

    private GenerationTables() {}

    static void create() {
        TableMetadata times = table(TIMES, "(key text, time timestamp, expired timestamp, PRIMARY KEY (key, time))"
                                           + " WITH CLUSTERING ORDER BY (time DESC)");
        TableMetadata streams = table(STREAMS, "(time timestamp, range_end bigint, streams frozen<set<blob>>,"
                                               + " PRIMARY KEY (time, range_end))");
        Schema.instance.transform(schema -> add(add(schema, times), streams));
    }

    private static Keyspaces add(Keyspaces schema, TableMetadata table) {
        return SchemaTransformations.addTable(table, true).apply(schema);
    }

    /** The same id on every node, so that two nodes that start together create one table. */
    private static TableMetadata table(String name, String definition) {
        return CreateTableStatement.parse("CREATE TABLE " + name + ' ' + definition, KEYSPACE)
                                   .id(TableId.forSystemTable(KEYSPACE, name)).build();
    }

    /** The starts of all published generations. */
    static List<Long> starts(ConsistencyLevel level) {
        List<Long> starts = new ArrayList<>();
        for (UntypedResultSet.Row row : QueryProcessor.execute(
            "SELECT time FROM " + KEYSPACE + '.' + TIMES + " WHERE key = 'timestamps'", level))
            starts.add(row.getTimestamp("time").getTime());
        return starts;
    }

    static Generation read(long start, ConsistencyLevel level) {
        TreeMap<Long, ByteBuffer> streams = new TreeMap<>();
        for (UntypedResultSet.Row row : QueryProcessor.execute(
            "SELECT range_end, streams FROM " + KEYSPACE + '.' + STREAMS + " WHERE time = ?", level, new Date(start)))
            streams.put(row.getLong("range_end"), row.getFrozenSet("streams", BytesType.instance).iterator().next());
        return new Generation(start, streams);
    }

    /** The time goes last: readers trust streams only of a generation whose time is listed. */
    static void publish(Generation generation, ConsistencyLevel level) {
        Date time = new Date(generation.start);
        List<Object> values = new ArrayList<>();
        StringBuilder batch = new StringBuilder("BEGIN UNLOGGED BATCH ");
        generation.ranges().forEach((end, stream) -> {
            batch.append("INSERT INTO " + KEYSPACE + '.' + STREAMS + " (time, range_end, streams) VALUES (?, ?, ?); ");
            values.addAll(List.of(time, end, Set.of(stream)));
        });
        QueryProcessor.execute(batch.append("APPLY BATCH").toString(), level, values.toArray());
        QueryProcessor.execute("INSERT INTO " + KEYSPACE + '.' + TIMES + " (key, time) VALUES ('timestamps', ?)",
                               level, time);
    }
}
