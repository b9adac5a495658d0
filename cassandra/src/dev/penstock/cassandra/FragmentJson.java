package dev.penstock.cassandra;

import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.StringJoiner;

import org.apache.cassandra.db.DeletionTime;
import org.apache.cassandra.db.LivenessInfo;
import org.apache.cassandra.db.marshal.AbstractType;
import org.apache.cassandra.db.marshal.CollectionType;
import org.apache.cassandra.db.marshal.ShortType;
import org.apache.cassandra.db.marshal.UserType;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.db.rows.ColumnData;
import org.apache.cassandra.db.rows.ComplexColumnData;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.utils.JsonUtils;

/**
 * Fragments as JSON, in the form of {@code scylla sstable dump-data}.
 *
 * The key of a cell of a user type is the name of its field; ScyllaDB leaves it empty.
 */
final class FragmentJson {
    private static final DateTimeFormatter SECOND =
        DateTimeFormatter.ofPattern("yyyy-MM-dd HH:mm:ss'z'").withZone(ZoneOffset.UTC);

    private FragmentJson() {}

    /** The metadata of the start of a partition or of a change of the deleted range; null and LIVE delete nothing. */
    static String deletion(DeletionTime time) {
        return "{\"tombstone\":" + tombstone(time) + '}';
    }

    static String row(Row row) {
        StringJoiner members = new StringJoiner(",", "{", "}");
        if (!row.deletion().isLive())
            members.add("\"tombstone\":" + tombstone(row.deletion().time()));
        if (!row.primaryKeyLivenessInfo().isEmpty())
            members.add("\"marker\":" + marker(row.primaryKeyLivenessInfo()));
        return members.add("\"columns\":" + columns(row)).toString();
    }

    /** The cells of a row without their values. */
    static String columns(Row row) {
        StringJoiner members = new StringJoiner(",", "{", "}");
        for (ColumnData data : row)
            members.add(quoted(data.column().name.toString()) + ':'
                        + (data instanceof Cell ? cell((Cell<?>) data) : collection((ComplexColumnData) data)));
        return members.toString();
    }

    /** The values of a row's cells. */
    static String values(Row row) {
        StringJoiner members = new StringJoiner(",", "{", "}");
        for (ColumnData data : row) {
            String name = quoted(data.column().name.toString());
            if (data instanceof Cell) {
                members.add(name + ':' + value((Cell<?>) data, data.column().type));
                continue;
            }
            StringJoiner cells = new StringJoiner(",", "[", "]");
            for (Cell<?> cell : (ComplexColumnData) data)
                cells.add("{\"key\":" + quoted(key(cell)) + ",\"value\":" + value(cell, valueType(cell)) + '}');
            members.add(name + ':' + cells);
        }
        return members.toString();
    }

    private static String tombstone(DeletionTime time) {
        if (time == null || time.isLive())
            return "{}";
        return "{\"timestamp\":" + time.markedForDeleteAt() + ",\"deletion_time\":"
               + second(time.localDeletionTime()) + '}';
    }

    private static String marker(LivenessInfo marker) {
        return "{\"timestamp\":" + marker.timestamp()
               + (marker.isExpiring() ? expiry(marker.ttl(), marker.localExpirationTime()) : "") + '}';
    }

    private static String collection(ComplexColumnData data) {
        StringJoiner cells = new StringJoiner(",", "[", "]");
        for (Cell<?> cell : data)
            cells.add("{\"key\":" + quoted(key(cell)) + ",\"value\":" + cell(cell) + '}');
        DeletionTime deletion = data.complexDeletion();
        return (deletion.isLive() ? "{" : "{\"tombstone\":" + tombstone(deletion) + ',') + "\"cells\":" + cells + '}';
    }

    private static String cell(Cell<?> cell) {
        boolean isFrozen = cell.path() == null && cell.column().type.isCollection();
        return "{\"is_live\":" + !cell.isTombstone() + ",\"type\":"
               + (cell.isCounterCell() ? "\"counter-shards\"" : isFrozen ? "\"frozen-collection\"" : "\"regular\"")
               + ",\"timestamp\":" + cell.timestamp()
               + (cell.isExpiring() ? expiry(cell.ttl(), cell.localDeletionTime()) : "")
               + (cell.isTombstone() ? ",\"deletion_time\":" + second(cell.localDeletionTime()) : "") + '}';
    }

    private static String expiry(int ttl, long at) {
        return ",\"ttl\":\"" + ttl + "s\",\"expiry\":" + second(at);
    }

    private static String second(long seconds) {
        return '"' + SECOND.format(Instant.ofEpochSecond(seconds)) + '"';
    }

    private static String key(Cell<?> cell) {
        AbstractType<?> type = cell.column().type;
        if (type instanceof UserType)
            return ((UserType) type).fieldNameAsString(field(cell));
        return ((CollectionType<?>) type).nameComparator().getString(cell.path().get(0));
    }

    private static int field(Cell<?> cell) {
        return ShortType.instance.compose(cell.path().get(0));
    }

    private static AbstractType<?> valueType(Cell<?> cell) {
        ColumnMetadata column = cell.column();
        return column.type instanceof UserType
               ? ((UserType) column.type).fieldType(field(cell)) : ((CollectionType<?>) column.type).valueComparator();
    }

    private static String value(Cell<?> cell, AbstractType<?> type) {
        return cell.isTombstone() ? "null" : quoted(type.getString(cell.buffer()));
    }

    private static String quoted(String text) {
        return '"' + JsonUtils.quoteAsJsonString(text) + '"';
    }
}
