package dev.penstock.cassandra;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.schema.ColumnMetadata;

/** The cells of one row that share a timestamp and a TTL. */
final class RowPart implements CellSource {
    private static final class Elements {
        boolean cleared;
        final List<Cell<?>> cells = new ArrayList<>();
    }

    private final List<Cell<?>> cells = new ArrayList<>();
    private final Map<ColumnMetadata, Elements> elements = new LinkedHashMap<>();

    void add(Cell<?> cell) {
        cells.add(cell);
    }

    void clear(ColumnMetadata column) {
        elements(column).cleared = true;
    }

    void addElement(Cell<?> cell) {
        elements(cell.column()).cells.add(cell);
    }

    private Elements elements(ColumnMetadata column) {
        return elements.computeIfAbsent(column, c -> new Elements());
    }

    boolean isEmpty() {
        return cells.isEmpty() && elements.isEmpty();
    }

    /** Moves the collections that were not cleared in this part to a part of their own. */
    RowPart takeLooseElements() {
        RowPart loose = new RowPart();
        Iterator<Map.Entry<ColumnMetadata, Elements>> all = elements.entrySet().iterator();
        while (all.hasNext()) {
            Map.Entry<ColumnMetadata, Elements> entry = all.next();
            if (entry.getValue().cleared)
                continue;
            loose.elements.put(entry.getKey(), entry.getValue());
            all.remove();
        }
        return loose;
    }

    @Override
    public void feed(CellSink sink) {
        cells.forEach(sink::atomic);
        elements.forEach((column, written) -> sink.elements(column, written.cleared, written.cells));
    }
}
