package dev.penstock.cassandra;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collection;
import java.util.List;

import org.apache.cassandra.db.Clustering;
import org.apache.cassandra.db.Mutation;

/** Writes the log rows of one partition's changes: for each group the preimages, the changes, the postimages. */
public final class LogWriter {
    private final LogTable table;
    private final LogRow row;
    private final LogMutation mutation;
    private PartitionState state;

    private LogWriter(LogTable table, PartitionChange change, LogContext context) {
        this.table = table;
        this.row = new LogRow(table, table.split(change.key));
        this.mutation = new LogMutation(table, row, change.key, context.nowInSeconds);
    }

    /** Adds the mutations of the log for the change, none if it changes nothing. */
    public static void write(LogTable table, PartitionChange change, LogContext context,
                             Collection<? super Mutation> out) {
        Collection<Group> groups = Splitter.groups(change);
        if (groups.isEmpty())
            return;
        LogWriter writer = new LogWriter(table, change, context);
        if (table.options.hasImages())
            writer.writeWithImages(change, groups, context);
        else
            groups.forEach(writer::write);
        writer.mutation.build(out);
    }

    private void write(Group group) {
        mutation.begin(group.timestamp);
        for (Delta delta : group.deltas)
            write(delta);
        mutation.end();
    }

    private void writeWithImages(PartitionChange change, Collection<Group> groups, LogContext context) {
        List<GroupTouch> touches = new ArrayList<>(groups.size());
        for (Group group : groups)
            touches.add(new GroupTouch(table, group));
        state = new ImageRead(table, change, touches).read(context);
        int i = 0;
        for (Group group : groups)
            writeWithImages(group, touches.get(i++));
    }

    private void writeWithImages(Group group, GroupTouch touch) {
        mutation.begin(group.timestamp);
        if (table.options.preimage != CdcOptions.Preimage.NONE)
            writePreimages(touch);
        for (Delta delta : group.deltas) {
            write(delta);
            state.apply(delta);
        }
        if (table.options.postimage)
            writePostimages(touch);
        mutation.end();
    }

    private void write(Delta delta) {
        if (delta.kind == Delta.Kind.RANGE_DELETE) {
            mutation.next();
            row.reset(delta.range.slice.start().isInclusive() ? 5 : 6, delta.range.slice.start());
            mutation.next();
            row.reset(delta.range.slice.end().isInclusive() ? 7 : 8, delta.range.slice.end());
            return;
        }
        mutation.next();
        row.reset(delta.kind.code, delta.clustering);
        row.ttl(delta.ttl);
        if (!table.options.keysOnly)
            delta.cells.feed(row);
    }

    private void writePreimages(GroupTouch touch) {
        if (touch.statics != null && state.statics() != null)
            writePreimage(table.statics, state.statics(), touch.statics, null);
        touch.rows.forEach((clustering, rowTouch) -> {
            RowState before = state.row(clustering);
            if (before != null)
                writePreimage(table.regulars, before, rowTouch, clustering);
        });
    }

    private void writePreimage(LoggedColumn[] columns, RowState before, RowTouch touch,
                               Clustering<?> clustering) {
        mutation.next();
        row.reset(0, clustering);
        boolean all = touch.isDeleted || table.options.preimage == CdcOptions.Preimage.FULL;
        BitSet shown = touch.columns;
        for (LoggedColumn column : columns)
            if (all || shown.get(column.position))
                row.image(column, before, true);
    }

    private void writePostimages(GroupTouch touch) {
        if (touch.staticsSurvive())
            writePostimage(table.statics, state.statics(), null);
        touch.rows.forEach((clustering, rowTouch) -> {
            if (touch.survives(clustering, rowTouch))
                writePostimage(table.regulars, state.row(clustering), clustering);
        });
    }

    private void writePostimage(LoggedColumn[] columns, RowState after, Clustering<?> clustering) {
        mutation.next();
        row.reset(9, clustering);
        for (LoggedColumn column : columns)
            row.image(column, after, false);
    }
}
