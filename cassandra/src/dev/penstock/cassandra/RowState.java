package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.utils.ByteBufferUtil;

/**
 * The values of one row, first as read from the base table, then as the request changes them.
 *
 * A value is a ByteBuffer, a sorted map of a collection's elements, or an array of a UDT's fields; null is no value. A
 * collection that loses its last element by key stays, empty, and a UDT once touched stays, all null: both as in
 * ScyllaDB.
 */
final class RowState implements CellSink {
    private final LogTable table;
    private final Object[] values;
    /** While loading: the columns to take, or null for all. */
    private BitSet wanted;

    RowState(LogTable table, int columns) {
        this.table = table;
        this.values = new Object[columns];
    }

    void load(CellSource cells, BitSet wanted) {
        this.wanted = wanted;
        cells.feed(this);
        this.wanted = null;
    }

    boolean hasValue(LoggedColumn column) {
        return values[column.position] != null;
    }

    @Override
    public void atomic(Cell<?> cell) {
        LoggedColumn column = table.column(cell.column());
        if (column != null && isWanted(column))
            values[column.position] = cell.isTombstone() ? null : cell.buffer();
    }

    @Override
    public void elements(ColumnMetadata base, boolean cleared, Iterable<Cell<?>> cells) {
        LoggedColumn column = table.column(base);
        if (!isWanted(column))
            return;
        if (cleared)
            values[column.position] = null;
        if (column.isUdt())
            setFields(column, cells);
        else
            setElements(column, cells);
    }

    private boolean isWanted(LoggedColumn column) {
        return wanted == null || wanted.get(column.position);
    }

    private void setFields(LoggedColumn column, Iterable<Cell<?>> cells) {
        ByteBuffer[] fields = (ByteBuffer[]) values[column.position];
        if (fields == null)
            values[column.position] = fields = new ByteBuffer[column.fields()];
        for (Cell<?> cell : cells)
            fields[ByteBufferUtil.toShort(cell.path().get(0))] = cell.isTombstone() ? null : cell.buffer();
    }

    private void setElements(LoggedColumn column, Iterable<Cell<?>> cells) {
        Map<ByteBuffer, ByteBuffer> elements = collection(column);
        for (Cell<?> cell : cells) {
            ByteBuffer key = cell.path().get(0);
            if (!cell.isTombstone()) {
                if (elements == null)
                    values[column.position] = elements = new TreeMap<>(order(column));
                elements.put(key, cell.buffer());
            }
            else if (elements != null)
                elements.remove(key);
        }
    }

    private static Comparator<ByteBuffer> order(LoggedColumn column) {
        return column.collection().nameComparator()::compare;
    }

    @SuppressWarnings("unchecked")
    private Map<ByteBuffer, ByteBuffer> collection(LoggedColumn column) {
        return (Map<ByteBuffer, ByteBuffer>) values[column.position];
    }

    /** The value in the type of the log's column, or null. */
    ByteBuffer value(LoggedColumn column) {
        Object value = values[column.position];
        if (value == null || value instanceof ByteBuffer)
            return (ByteBuffer) value;
        if (column.isUdt())
            return LoggedColumn.packFields((ByteBuffer[]) value);
        List<ByteBuffer> elements = new ArrayList<>();
        collection(column).forEach((key, element) -> {
            elements.add(key);
            if (!column.isSet())
                elements.add(element);
        });
        return column.pack(elements);
    }
}
