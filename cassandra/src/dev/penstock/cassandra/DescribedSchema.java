package dev.penstock.cassandra;

import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.stream.Stream;

import com.google.common.collect.ImmutableSortedMap;

import org.apache.cassandra.cql3.SchemaElement;
import org.apache.cassandra.cql3.statements.Hidden;
import org.apache.cassandra.db.marshal.UTF8Type;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.utils.ByteBufferUtil;

/**
 * What a DESCRIBE shows so that its rows, executed one after the other, create the same tables again.
 *
 * Options of a log are shown as {@code cdc = {...}} instead of the bytes that store them. A log is created with its base
 * table, so it has no CREATE; its own options are an ALTER, in a row with its name after the base table's indexes and
 * views. A log that is asked for by name is shown with its CREATE inside a comment. A log whose base table no longer
 * writes to it is shown as any other table. All this is as in ScyllaDB, and so is the text of the comment.
 */
public final class DescribedSchema {
    /** Options are in alphabetical order, after those that only CREATE takes. */
    private static final String FIRST_OPTION = "additional_write_policy";

    private static final Field DROPPED = Hidden.field(TableMetadata.class, "droppedColumns");

    private DescribedSchema() {}

    /** The elements to show; a listing has names only. Of logs in use only the first element may be one. */
    public static Stream<?> shown(Stream<?> elements, boolean isListing) {
        List<Object> shown = new ArrayList<>();
        SchemaElement log = null;
        for (Iterator<?> all = elements.iterator(); all.hasNext();) {
            Object element = all.next();
            if (log != null && !isOfTable(element)) {
                shown.add(log);
                log = null;
            }
            TableMetadata table = element instanceof TableMetadata ? (TableMetadata) element : null;
            if (table == null)
                shown.add(element);
            else if (!isLogInUse(table))
                shown.add(new Shown(table, create -> create));
            else if (shown.isEmpty() && !isListing)
                shown.add(new Shown(table, DescribedSchema::comment));
            if (table != null && !isListing)
                log = alteredLog(table);
        }
        if (log != null)
            shown.add(log);
        return shown.stream();
    }

    /** Indexes and views are listed after their table. */
    private static boolean isOfTable(Object element) {
        SchemaElement.SchemaElementType type = ((SchemaElement) element).elementType();
        return type == SchemaElement.SchemaElementType.INDEX || type == SchemaElement.SchemaElementType.MATERIALIZED_VIEW;
    }

    private static boolean isLogInUse(TableMetadata table) {
        if (!LogSchema.isLog(table))
            return false;
        TableMetadata base = Schema.instance.getTableMetadata(table.keyspace, LogSchema.baseName(table.name));
        return base != null && CdcOptions.isEnabled(base);
    }

    private static String comment(String create) {
        return "/* Do NOT execute this statement! It's only for informational purposes.\n"
               + "   A CDC log table is created automatically when creating the base with CDC\n"
               + "   enabled option or creating the vector index on the base table's vector column.\n\n"
               + create + "\n*/";
    }

    /** The log with its options as an ALTER, or null if the table has no log in use. */
    private static SchemaElement alteredLog(TableMetadata base) {
        TableMetadata log = Schema.instance.getTableMetadata(base.keyspace, LogSchema.name(base.name));
        if (!CdcOptions.isEnabled(base) || log == null)
            return null;
        // Not the log's internals: a log that is created again has an id of its own and no dropped columns.
        String create = options(log.toCqlString(false, false), log);
        return new Shown(log, ignored -> "ALTER TABLE " + log + " WITH " + create.substring(create.indexOf(FIRST_OPTION)));
    }

    /** The text of a table with this plugin's extensions taken out and the option they store put in. */
    private static String options(String create, TableMetadata table) {
        Map<String, ByteBuffer> others = new TreeMap<>(table.params.extensions);
        others.remove(CdcOptions.EXTENSION);
        others.remove(LogSchema.MARK);
        String extensions = quoted(others, value -> "0x" + ByteBufferUtil.bytesToHex(value), "");
        String described = create.replaceFirst("AND extensions = \\{[^}]*\\}", "AND extensions = " + extensions);
        CdcOptions options = CdcOptions.of(table);
        return options == null ? described
                               : described.replaceFirst("AND cdc = (true|false)",
                                                        "AND cdc = " + quoted(options.asMap(), value -> value, "'"));
    }

    private static <V> String quoted(Map<String, V> map, Function<V, String> text, String quote) {
        List<String> entries = new ArrayList<>();
        map.forEach((key, value) -> entries.add('\'' + key + "': " + quote + text.apply(value) + quote));
        return '{' + String.join(", ", entries) + '}';
    }

    /** A table whose text is another than the node's. */
    private static final class Shown implements SchemaElement {
        private final TableMetadata table;
        private final Function<String, String> text;

        /** The function gets the text of the table with this plugin's options. */
        Shown(TableMetadata table, Function<String, String> text) {
            this.table = table;
            this.text = text;
        }

        @Override
        public SchemaElementType elementType() {
            return table.elementType();
        }

        @Override
        public String elementKeyspace() {
            return table.elementKeyspace();
        }

        @Override
        public String elementName() {
            return table.elementName();
        }

        @Override
        public String toCqlString(boolean withInternals, boolean ifNotExists) {
            return text.apply(options(ordered(table).toCqlString(withInternals, ifNotExists), table));
        }

        /** The table with its dropped columns in the order that ScyllaDB shows them in, last name first. */
        private static TableMetadata ordered(TableMetadata table) {
            if (table.droppedColumns.size() < 2)
                return table;
            TableMetadata copy = table.unbuild().build();
            Comparator<ByteBuffer> byName = Comparator.comparing(name -> UTF8Type.instance.compose(name));
            Hidden.set(DROPPED, copy, ImmutableSortedMap.copyOf(table.droppedColumns, byName.reversed()));
            return copy;
        }
    }
}
