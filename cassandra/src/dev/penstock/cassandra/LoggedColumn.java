package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.util.List;

import org.apache.cassandra.db.marshal.CollectionType;
import org.apache.cassandra.db.marshal.SetType;
import org.apache.cassandra.db.marshal.TupleType;
import org.apache.cassandra.db.marshal.UserType;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.serializers.CollectionSerializer;

/** A regular or static column of a base table, and the positions of its columns in a log row. */
final class LoggedColumn {
    final ColumnMetadata base;
    /** Its place among the columns of its kind, static or regular. */
    final int position;
    final int value;
    final int deleted;
    final int deletedElements;
    private final boolean isSet;

    LoggedColumn(ColumnMetadata base, int position, int value, int deleted, int deletedElements) {
        this.base = base;
        this.position = position;
        this.value = value;
        this.deleted = deleted;
        this.deletedElements = deletedElements;
        this.isSet = base.type instanceof SetType;
    }

    boolean isUdt() {
        return base.type instanceof UserType;
    }

    boolean isSet() {
        return isSet;
    }

    /** The type of an element's key: of a set's elements, a map's keys, a list's time UUIDs. */
    CollectionType<?> collection() {
        return (CollectionType<?>) base.type;
    }

    int fields() {
        return ((UserType) base.type).size();
    }

    /** A frozen collection from its elements: keys of a set, keys and values in turn of a map or list. */
    ByteBuffer pack(List<ByteBuffer> elements) {
        return CollectionSerializer.pack(elements, isSet ? elements.size() : elements.size() / 2);
    }

    static ByteBuffer packSet(List<ByteBuffer> elements) {
        return CollectionSerializer.pack(elements, elements.size());
    }

    static ByteBuffer packFields(ByteBuffer[] fields) {
        return TupleType.buildValue(fields);
    }
}
