package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import org.apache.cassandra.db.ClusteringPrefix;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.utils.ByteBufferUtil;

/** The values of one log row while it is put together, by position; a null is a column the row does not have. */
final class LogRow implements CellSink {
    private static final ByteBuffer TRUE = ByteBuffer.wrap(new byte[]{ 1 });
    private static final ByteBuffer[] OPERATIONS = new ByteBuffer[10];

    static {
        for (byte code = 0; code < OPERATIONS.length; code++)
            OPERATIONS[code] = ByteBuffer.wrap(new byte[]{ code });
    }

    private final LogTable table;
    private final ByteBuffer[] partitionKey;
    final ByteBuffer[] values;

    LogRow(LogTable table, ByteBuffer[] partitionKey) {
        this.table = table;
        this.partitionKey = partitionKey;
        this.values = new ByteBuffer[table.columns.length];
    }

    /** Starts over as a row of the operation for the clustered row or bound, or for none. */
    void reset(int operation, ClusteringPrefix<?> clustering) {
        Arrays.fill(values, null);
        values[table.operation] = OPERATIONS[operation];
        for (int i = 0; i < partitionKey.length; i++)
            values[table.partitionKey[i]] = partitionKey[i];
        if (clustering == null || !table.hasClustering())
            return;
        for (int i = 0; i < clustering.size(); i++)
            values[table.clustering[i]] = clustering.bufferAt(i);
    }

    void ttl(int seconds) {
        if (seconds > 0)
            values[table.ttl] = ByteBufferUtil.bytes((long) seconds);
    }

    void endOfBatch() {
        values[table.endOfBatch] = TRUE;
    }

    @Override
    public void atomic(Cell<?> cell) {
        LoggedColumn column = table.column(cell.column());
        if (column == null)
            return;
        if (cell.isTombstone())
            values[column.deleted] = TRUE;
        else
            values[column.value] = cell.buffer();
    }

    @Override
    public void elements(ColumnMetadata base, boolean cleared, Iterable<Cell<?>> cells) {
        LoggedColumn column = table.column(base);
        if (cleared)
            values[column.deleted] = TRUE;
        if (column.isUdt())
            fields(column, cells);
        else
            collection(column, cells);
    }

    private void collection(LoggedColumn column, Iterable<Cell<?>> cells) {
        List<ByteBuffer> written = new ArrayList<>();
        List<ByteBuffer> removed = new ArrayList<>(0);
        for (Cell<?> cell : cells) {
            if (cell.isTombstone()) {
                removed.add(cell.path().get(0));
                continue;
            }
            written.add(cell.path().get(0));
            if (!column.isSet())
                written.add(cell.buffer());
        }
        if (!written.isEmpty())
            values[column.value] = column.pack(written);
        if (!removed.isEmpty())
            values[column.deletedElements] = LoggedColumn.packSet(removed);
    }

    /** A UDT that a statement touches is never null in the log: fields it did not write are. */
    private void fields(LoggedColumn column, Iterable<Cell<?>> cells) {
        ByteBuffer[] written = new ByteBuffer[column.fields()];
        List<ByteBuffer> removed = new ArrayList<>(0);
        for (Cell<?> cell : cells) {
            ByteBuffer path = cell.path().get(0);
            if (cell.isTombstone())
                removed.add(path);
            else
                written[ByteBufferUtil.toShort(path)] = cell.buffer();
        }
        values[column.value] = LoggedColumn.packFields(written);
        if (!removed.isEmpty())
            values[column.deletedElements] = LoggedColumn.packSet(removed);
    }

    /** A column of a row's state; without a value it is flagged in a preimage and just absent in a postimage. */
    void image(LoggedColumn column, RowState state, boolean flagNull) {
        ByteBuffer value = state.value(column);
        if (value != null)
            values[column.value] = value;
        else if (flagNull)
            values[column.deleted] = TRUE;
    }
}
