package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

import org.apache.cassandra.db.BufferClusteringBound;
import org.apache.cassandra.db.ClusteringBound;
import org.apache.cassandra.db.ClusteringPrefix;
import org.apache.cassandra.exceptions.InvalidRequestException;
import org.apache.cassandra.service.pager.PagingState;
import org.apache.cassandra.utils.ByteBufferUtil;

/** After which fragment of which partition the next page begins; a client keeps it as a paging state. */
final class FragmentPlace {
    static final byte START = 0;
    static final byte STATIC = 1;
    static final byte CLUSTERED = 2;
    static final byte END = 3;
    private static final int INCLUSIVE = 1;
    private static final int DELETION = 2;

    final ByteBuffer key;
    /** The last fragment's partition_region. */
    final byte region;
    /** Where the rows and deleted ranges that follow begin, if the last fragment was one of them and some may follow. */
    final ClusteringBound<?> from;
    /** Whether a deletion that is open there was the last fragment: a read from there on begins with it again. */
    final boolean isDeletion;

    FragmentPlace(ByteBuffer key, byte region, ClusteringBound<?> from, boolean isDeletion) {
        this.key = key;
        this.region = region;
        this.from = from;
        this.isDeletion = isDeletion;
    }

    /** The place after a row or the bound of a deleted range. */
    static FragmentPlace after(ByteBuffer key, ClusteringPrefix<?> last) {
        ByteBuffer[] values = new ByteBuffer[last.size()];
        for (int i = 0; i < values.length; i++)
            values[i] = last.bufferAt(i);
        return new FragmentPlace(key, CLUSTERED, bound(last.kind().comparedToClustering < 0, values),
                                 last.kind() != ClusteringPrefix.Kind.CLUSTERING);
    }

    private static ClusteringBound<?> bound(boolean isInclusive, ByteBuffer[] values) {
        if (values.length == 0)
            return isInclusive ? ClusteringBound.BOTTOM : null;
        return BufferClusteringBound.create(ClusteringBound.boundKind(true, isInclusive), values);
    }

    ByteBuffer bytes() {
        int size = 4 + key.remaining() + 1 + (from == null ? 0 : 1);
        for (int i = 0; from != null && i < from.size(); i++)
            size += 4 + from.bufferAt(i).remaining();
        ByteBuffer bytes = ByteBuffer.allocate(size);
        bytes.putInt(key.remaining()).put(key.duplicate()).put(region);
        if (from != null)
            bytes.put((byte) ((from.isInclusive() ? INCLUSIVE : 0) | (isDeletion ? DELETION : 0)));
        for (int i = 0; from != null && i < from.size(); i++)
            bytes.putInt(from.bufferAt(i).remaining()).put(from.bufferAt(i).duplicate());
        bytes.flip();
        return bytes;
    }

    /** The place of a paging state, null for the first page. */
    static FragmentPlace of(PagingState state) {
        if (state == null)
            return null;
        try {
            ByteBuffer bytes = state.partitionKey.duplicate();
            ByteBuffer key = ByteBufferUtil.readBytes(bytes, bytes.getInt());
            byte region = bytes.get();
            byte flags = bytes.hasRemaining() ? bytes.get() : 0;
            ClusteringBound<?> from = region == CLUSTERED ? readBound(bytes, (flags & INCLUSIVE) != 0) : null;
            return new FragmentPlace(key, region, from, (flags & DELETION) != 0);
        }
        catch (RuntimeException e) {
            throw new InvalidRequestException("Invalid value for the paging state");
        }
    }

    private static ClusteringBound<?> readBound(ByteBuffer bytes, boolean isInclusive) {
        List<ByteBuffer> values = new ArrayList<>();
        while (bytes.hasRemaining())
            values.add(ByteBufferUtil.readBytes(bytes, bytes.getInt()));
        return bound(isInclusive, values.toArray(new ByteBuffer[0]));
    }
}
