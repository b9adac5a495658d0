package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.concurrent.ThreadLocalRandom;

import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.db.DecoratedKey;

/** The streams in use from one point in time on: one for each range of the ring. */
final class Generation {
    /** Milliseconds since the epoch. */
    final long start;
    private final long[] rangeEnds;
    private final DecoratedKey[] streams;

    Generation(long start, SortedMap<Long, ByteBuffer> streamByRangeEnd) {
        this.start = start;
        this.rangeEnds = streamByRangeEnd.keySet().stream().mapToLong(Long::longValue).toArray();
        this.streams = streamByRangeEnd.values().stream().map(DatabaseDescriptor.getPartitioner()::decorateKey)
                                       .toArray(DecoratedKey[]::new);
    }

    /** New streams for the ranges that end at the tokens, given in ascending order. */
    static Generation create(long start, long[] tokens) {
        TreeMap<Long, ByteBuffer> streams = new TreeMap<>();
        for (int i = 0; i < tokens.length; i++) {
            long previous = tokens[i == 0 ? tokens.length - 1 : i - 1];
            streams.put(tokens[i], streamId(previous + 1, i));
        }
        return new Generation(start, streams);
    }

    /** A token, then from the top 38 random bits, 22 bits of the range's index, 4 bits of the format's version (1). */
    private static ByteBuffer streamId(long token, int index) {
        long random = ThreadLocalRandom.current().nextLong() << 26;
        ByteBuffer id = ByteBuffer.allocate(16).putLong(token).putLong(random | (long) index << 4 | 1);
        id.flip();
        return id;
    }

    long startMicros() {
        return start * 1000;
    }

    DecoratedKey stream(long token) {
        int i = Arrays.binarySearch(rangeEnds, token);
        if (i < 0)
            i = -i - 1;
        return streams[i == rangeEnds.length ? 0 : i];
    }

    boolean hasRanges(long[] tokens) {
        return Arrays.equals(rangeEnds, tokens);
    }

    Map<Long, ByteBuffer> ranges() {
        Map<Long, ByteBuffer> ranges = new TreeMap<>();
        for (int i = 0; i < rangeEnds.length; i++)
            ranges.put(rangeEnds[i], streams[i].getKey());
        return ranges;
    }
}
