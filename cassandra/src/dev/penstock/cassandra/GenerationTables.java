package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

import org.apache.cassandra.cql3.QueryProcessor;
import org.apache.cassandra.cql3.UntypedResultSet;
import org.apache.cassandra.cql3.statements.schema.CreateTableStatement;
import org.apache.cassandra.db.ConsistencyLevel;
import org.apache.cassandra.db.marshal.BytesType;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.SchemaConstants;
import org.apache.cassandra.schema.SchemaTransformations;
import org.apache.cassandra.schema.TableId;

/** The two tables in which readers find the generations and their streams. */
public final class GenerationTables {
    private static final String KEYSPACE = SchemaConstants.DISTRIBUTED_KEYSPACE_NAME;
    private static final String TIMES = "cdc_generation_timestamps";
    private static final String STREAMS = "cdc_streams_descriptions_v2";

    private GenerationTables() {}

    public static boolean contains(String keyspace, String table) {
        return keyspace.equals(KEYSPACE) && (table.equals(TIMES) || table.equals(STREAMS));
    }

    static void create() {
        create(TIMES, "(key text, time timestamp, expired timestamp, PRIMARY KEY (key, time))"
                      + " WITH CLUSTERING ORDER BY (time DESC)");
        create(STREAMS, "(time timestamp, range_end bigint, streams frozen<set<blob>>, PRIMARY KEY (time, range_end))");
    }

    private static void create(String name, String definition) {
        if (Schema.instance.getTableMetadata(KEYSPACE, name) != null)
            return;
        // The same id on every node, so that two nodes that start together create one table.
        TableId id = TableId.forSystemTable(KEYSPACE, name);
        Schema.instance.transform(SchemaTransformations.addTable(
            CreateTableStatement.parse("CREATE TABLE " + name + ' ' + definition, KEYSPACE).id(id).build(), true));
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
        for (Map.Entry<Long, ByteBuffer> range : generation.ranges().entrySet())
            QueryProcessor.execute("INSERT INTO " + KEYSPACE + '.' + STREAMS + " (time, range_end, streams) VALUES (?, ?, ?)",
                                   level, time, range.getKey(), Set.of(range.getValue()));
        QueryProcessor.execute("INSERT INTO " + KEYSPACE + '.' + TIMES + " (key, time) VALUES ('timestamps', ?)", level, time);
    }
}
