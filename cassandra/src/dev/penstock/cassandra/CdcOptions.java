package dev.penstock.cassandra;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;

import static java.nio.charset.StandardCharsets.UTF_8;

import org.apache.cassandra.exceptions.ConfigurationException;
import org.apache.cassandra.schema.TableMetadata;

/**
 * The table option {@code cdc = {...}}: parsed, checked with ScyllaDB's messages, and stored as ScyllaDB stores it, so
 * that its drivers and connectors find it in {@code system_schema.tables.extensions['cdc']}.
 */
public final class CdcOptions {
    public static final String EXTENSION = "cdc";
    private static final int DEFAULT_TTL = 86400;

    enum Preimage {
        NONE("false"), WRITTEN("true"), FULL("full");

        final String text;

        Preimage(String text) {
            this.text = text;
        }
    }

    public final boolean enabled;
    final Preimage preimage;
    final boolean postimage;
    final boolean keysOnly;
    final int ttl;

    private CdcOptions(Map<String, String> options) {
        enabled = flag("enabled", options.getOrDefault("enabled", "false"));
        preimage = preimage(options.getOrDefault("preimage", "false"));
        postimage = flag("postimage", options.getOrDefault("postimage", "false"));
        keysOnly = keysOnly(options.getOrDefault("delta", "full"));
        ttl = options.containsKey("ttl") ? ttl(options.get("ttl")) : DEFAULT_TTL;
    }

    /** The options a user gave, or a ConfigurationException that names the first bad one in the order of names. */
    public static CdcOptions parse(Map<String, String> given) {
        Map<String, String> options = new HashMap<>();
        CdcOptions parsed = new CdcOptions(options);
        for (Map.Entry<String, String> option : new TreeMap<>(given).entrySet()) {
            String key = option.getKey().toLowerCase(Locale.ROOT);
            if (!isKnown(key))
                throw new ConfigurationException("Invalid CDC option: " + option.getKey());
            options.put(key, option.getValue());
            parsed = new CdcOptions(options);
        }
        return parsed;
    }

    /** The options stored with a table, or null when it never had any. */
    public static CdcOptions of(TableMetadata table) {
        ByteBuffer stored = table.params.extensions.get(EXTENSION);
        return stored == null ? null : new CdcOptions(read(stored));
    }

    public static boolean isEnabled(TableMetadata table) {
        CdcOptions options = of(table);
        return options != null && options.enabled;
    }

    boolean hasImages() {
        return preimage != Preimage.NONE || postimage;
    }

    /** All five options as text, in alphabetical order. */
    public Map<String, String> asMap() {
        Map<String, String> map = new TreeMap<>();
        map.put("enabled", Boolean.toString(enabled));
        map.put("preimage", preimage.text);
        map.put("postimage", Boolean.toString(postimage));
        map.put("delta", keysOnly ? "keys" : "full");
        map.put("ttl", Integer.toString(ttl));
        return map;
    }

    /** A count, then length and bytes of each key and value; all numbers 32 bits, little-endian. */
    public ByteBuffer serialize() {
        Map<String, String> map = asMap();
        int size = 4;
        for (Map.Entry<String, String> option : map.entrySet())
            size += 8 + option.getKey().length() + option.getValue().length();
        ByteBuffer out = ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
        out.putInt(map.size());
        map.forEach((key, value) -> {
            write(out, key);
            write(out, value);
        });
        out.flip();
        return out.order(ByteOrder.BIG_ENDIAN);
    }

    private static void write(ByteBuffer out, String text) {
        byte[] bytes = text.getBytes(UTF_8);
        out.putInt(bytes.length).put(bytes);
    }

    private static Map<String, String> read(ByteBuffer stored) {
        ByteBuffer in = stored.duplicate().order(ByteOrder.LITTLE_ENDIAN);
        Map<String, String> options = new HashMap<>();
        for (int left = in.getInt(); left > 0; left--)
            options.put(readText(in), readText(in));
        return options;
    }

    private static String readText(ByteBuffer in) {
        byte[] bytes = new byte[in.getInt()];
        in.get(bytes);
        return new String(bytes, UTF_8);
    }

    private static boolean isKnown(String key) {
        return key.equals("enabled") || key.equals("preimage") || key.equals("postimage") || key.equals("delta")
               || key.equals("ttl");
    }

    private static boolean flag(String key, String value) {
        switch (value.toLowerCase(Locale.ROOT)) {
            case "true":
            case "1":
                return true;
            case "false":
            case "0":
                return false;
            default:
                throw invalid(key, value);
        }
    }

    private static Preimage preimage(String value) {
        if (value.equalsIgnoreCase("full"))
            return Preimage.FULL;
        return flag("preimage", value) ? Preimage.WRITTEN : Preimage.NONE;
    }

    private static boolean keysOnly(String value) {
        if (value.equalsIgnoreCase("keys"))
            return true;
        if (value.equalsIgnoreCase("full"))
            return false;
        throw invalid("delta", value);
    }

    /** ScyllaDB reads the leading integer and ignores what follows it. */
    private static int ttl(String value) {
        String text = value.trim();
        int end = !text.isEmpty() && (text.charAt(0) == '-' || text.charAt(0) == '+') ? 1 : 0;
        int start = end;
        while (end < text.length() && Character.isDigit(text.charAt(end)))
            end++;
        if (end == start)
            throw invalid("ttl", value);
        try {
            return notNegative(Integer.parseInt(text.substring(0, end)));
        }
        catch (NumberFormatException e) {
            throw new ConfigurationException("Invalid CDC option: ttl too large");
        }
    }

    private static int notNegative(int ttl) {
        if (ttl < 0)
            throw new ConfigurationException("Invalid CDC option: ttl must be >= 0");
        return ttl;
    }

    private static ConfigurationException invalid(String key, String value) {
        return new ConfigurationException("Invalid value for CDC option \"" + key + "\": " + value);
    }
}
