package org.apache.cassandra.cql3.statements;

import java.lang.reflect.AccessibleObject;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Collection;
import java.util.Map;
import java.util.Set;

import org.apache.cassandra.cql3.Attributes;
import org.apache.cassandra.cql3.BatchQueryOptions;
import org.apache.cassandra.cql3.QueryOptions;
import org.apache.cassandra.db.RegularAndStaticColumns;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.schema.TableId;
import org.apache.cassandra.service.QueryState;
import org.apache.cassandra.utils.Pair;

/** Private members of the node's statements, which a logged write uses where the node itself does. */
public final class Hidden {
    private static final Field BATCH_ATTRIBUTES = field(BatchStatement.class, "attrs");
    private static final Field BATCH_COLUMNS = field(BatchStatement.class, "updatedColumns");
    private static final Method BATCH_CAS =
        method(BatchStatement.class, "makeCasRequest", BatchQueryOptions.class, QueryState.class);
    private static final Method BATCH_SIZE = method(BatchStatement.class, "verifyBatchSize", Collection.class);
    private static final Method BATCH_TYPE = method(BatchStatement.class, "verifyBatchType", Collection.class);
    private static final Method BATCH_METRICS =
        method(BatchStatement.class, "updatePartitionsPerBatchMetrics", int.class);
    private static final Method CAS =
        method(ModificationStatement.class, "makeCasRequest", QueryState.class, QueryOptions.class);

    private Hidden() {}

    static Attributes attributes(BatchStatement batch) {
        return (Attributes) get(BATCH_ATTRIBUTES, batch);
    }

    @SuppressWarnings("unchecked")
    static Map<TableId, RegularAndStaticColumns> columns(BatchStatement batch) {
        return (Map<TableId, RegularAndStaticColumns>) get(BATCH_COLUMNS, batch);
    }

    @SuppressWarnings("unchecked")
    static Pair<CQL3CasRequest, Set<ColumnMetadata>> casRequest(BatchStatement batch, BatchQueryOptions options,
                                                                QueryState state) {
        return (Pair<CQL3CasRequest, Set<ColumnMetadata>>) call(BATCH_CAS, batch, options, state);
    }

    static CQL3CasRequest casRequest(ModificationStatement statement, QueryState state, QueryOptions options) {
        return (CQL3CasRequest) call(CAS, statement, state, options);
    }

    /** The node's warnings and limits for batches, and its metric. */
    static void checkBatch(BatchStatement batch, Collection<?> mutations) {
        call(BATCH_SIZE, null, mutations);
        call(BATCH_TYPE, batch, mutations);
        call(BATCH_METRICS, batch, mutations.size());
    }

    public static Field field(Class<?> type, String name) {
        try {
            return open(type.getDeclaredField(name));
        }
        catch (NoSuchFieldException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    private static Method method(Class<?> type, String name, Class<?>... parameters) {
        try {
            return open(type.getDeclaredMethod(name, parameters));
        }
        catch (NoSuchMethodException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    private static <T extends AccessibleObject> T open(T member) {
        member.setAccessible(true);
        return member;
    }

    public static Object get(Field field, Object owner) {
        try {
            return field.get(owner);
        }
        catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    public static void set(Field field, Object owner, Object value) {
        try {
            field.set(owner, value);
        }
        catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    private static Object call(Method method, Object owner, Object... arguments) {
        try {
            return method.invoke(owner, arguments);
        }
        catch (InvocationTargetException e) {
            if (e.getCause() instanceof RuntimeException)
                throw (RuntimeException) e.getCause();
            throw new IllegalStateException(e.getCause());
        }
        catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }
}
