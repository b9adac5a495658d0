package dev.penstock.cassandra;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/** The changes of one partition that carry one timestamp: they share one cdc$time. */
final class Group {
    final long timestamp;
    final List<Delta> deltas;

    Group(long timestamp, int size) {
        this.timestamp = timestamp;
        this.deltas = new ArrayList<>(size);
    }

    void add(Delta delta) {
        deltas.add(delta);
    }

    /** Brings changes of several kinds into the order of kinds; inside a kind the order stays. */
    Group sorted() {
        deltas.sort(Comparator.comparingInt(Delta::rank));
        return this;
    }
}
