package dev.penstock.cassandra;

import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import org.apache.cassandra.db.LivenessInfo;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.db.rows.ColumnData;
import org.apache.cassandra.db.rows.ComplexColumnData;
import org.apache.cassandra.db.rows.Row;

/**
 * Turns a partition's changes into groups, one per timestamp, oldest first.
 *
 * The common case keeps rows whole. Otherwise the cells of a row go to one part per timestamp and TTL; the part that
 * agrees with the row's marker is the insert. A collection's elements join an insert only together with their own
 * tombstone, because that is what an INSERT writes; else they are told as an update.
 */
final class Splitter {
    private final PartitionChange change;
    private final Map<Long, Group> groups = new TreeMap<>();

    private Splitter(PartitionChange change) {
        this.change = change;
    }

    static Collection<Group> groups(PartitionChange change) {
        Shape shape = Shape.of(change);
        if (shape.isEmpty())
            return List.of();
        return shape.mustSplit() ? new Splitter(change).split() : List.of(whole(change, shape));
    }

    private static Group whole(PartitionChange change, Shape shape) {
        Group group = new Group(shape.timestamp() + change.shift, change.rows.size() + 1);
        if (change.statics.columnCount() > 0)
            group.add(Delta.statics(shape.ttl(), CellSource.of(change.statics)));
        for (RowChange row : change.rows) {
            if (row.upsert != null)
                group.add(Delta.upsert(!row.upsert.primaryKeyLivenessInfo().isEmpty(), row.clustering, shape.ttl(),
                                       CellSource.of(row.upsert)));
            if (row.isDeleted())
                group.add(Delta.rowDelete(row.clustering));
        }
        for (RangeChange range : change.ranges)
            group.add(Delta.rangeDelete(range));
        if (change.isDeleted())
            group.add(Delta.partitionDelete());
        return group;
    }

    private Collection<Group> split() {
        parts(change.statics).forEach((at, byTtl) -> byTtl.forEach(
            (ttl, part) -> group(at).add(Delta.statics(ttl, part))));
        for (RowChange row : change.rows) {
            if (row.upsert != null)
                splitRow(row);
            if (row.isDeleted())
                group(row.deletedAt).add(Delta.rowDelete(row.clustering));
        }
        for (RangeChange range : change.ranges)
            group(range.deletedAt).add(Delta.rangeDelete(range));
        if (change.isDeleted())
            group(change.deletedAt).add(Delta.partitionDelete());
        groups.values().forEach(Group::sorted);
        return groups.values();
    }

    private void splitRow(RowChange row) {
        LivenessInfo marker = row.upsert.primaryKeyLivenessInfo();
        Map<Long, Map<Integer, RowPart>> parts = parts(row.upsert);
        if (!marker.isEmpty())
            part(parts, marker.timestamp(), marker.ttl());
        parts.forEach((at, byTtl) -> byTtl.forEach((ttl, part) -> {
            boolean isInsert = !marker.isEmpty() && marker.timestamp() == at && marker.ttl() == ttl;
            RowPart update = isInsert ? part.takeLooseElements() : part;
            if (isInsert)
                group(at).add(Delta.upsert(true, row.clustering, ttl, part));
            if (!isInsert || !update.isEmpty())
                group(at).add(Delta.upsert(false, row.clustering, ttl, update));
        }));
    }

    private static Map<Long, Map<Integer, RowPart>> parts(Row row) {
        Map<Long, Map<Integer, RowPart>> parts = new TreeMap<>();
        for (ColumnData data : row) {
            if (data instanceof Cell) {
                Cell<?> cell = (Cell<?>) data;
                part(parts, cell.timestamp(), cell.ttl()).add(cell);
                continue;
            }
            ComplexColumnData elements = (ComplexColumnData) data;
            if (!elements.complexDeletion().isLive())
                part(parts, Shape.clearedAt(elements), 0).clear(elements.column());
            for (Cell<?> cell : elements)
                part(parts, cell.timestamp(), cell.ttl()).addElement(cell);
        }
        return parts;
    }

    private static RowPart part(Map<Long, Map<Integer, RowPart>> parts, long timestamp, int ttl) {
        return parts.computeIfAbsent(timestamp, at -> new TreeMap<>()).computeIfAbsent(ttl, t -> new RowPart());
    }

    private Group group(long timestamp) {
        return groups.computeIfAbsent(timestamp, at -> new Group(at + change.shift, 4));
    }
}
