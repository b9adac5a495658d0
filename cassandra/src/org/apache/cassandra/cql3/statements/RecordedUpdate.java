package org.apache.cassandra.cql3.statements;

import java.util.ArrayList;
import java.util.List;

import dev.penstock.cassandra.PartitionChange;

import org.apache.cassandra.db.DecoratedKey;
import org.apache.cassandra.db.RegularAndStaticColumns;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.schema.TableMetadata;

/** Builds the update of a partition and keeps the single writes of rows, in case merging them hides some. */
final class RecordedUpdate extends PartitionUpdate.Builder {
    private final List<Row> writes = new ArrayList<>(4);
    private boolean hasUpsert;
    private boolean hasDeletion;

    RecordedUpdate(TableMetadata table, DecoratedKey key, RegularAndStaticColumns columns) {
        super(table, key, columns, 4);
    }

    @Override
    public void add(Row row) {
        super.add(row);
        if (row.isStatic() || row.isEmpty())
            return;
        writes.add(row);
        if (row.deletion().isLive())
            hasUpsert = true;
        else
            hasDeletion = true;
    }

    PartitionChange change(PartitionUpdate built) {
        return hasUpsert && hasDeletion ? PartitionChange.of(built, writes) : PartitionChange.of(built, 0);
    }
}
