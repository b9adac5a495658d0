package dev.penstock.cassandra;

import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The {@code BYPASS CACHE} at the end of a SELECT, which ScyllaDB's library for Go writes. The node does not know it; a
 * log is not cached, so such a SELECT is executed without it.
 */
final class BypassCache {
    private static final Pattern SELECT = Pattern.compile("\\s*SELECT\\s", Pattern.CASE_INSENSITIVE);
    private static final Pattern BYPASS = Pattern.compile("\\sBYPASS\\s+CACHE\\s*;?\\s*$", Pattern.CASE_INSENSITIVE);
    /** Longer than the words with some white space, so that no long statement is searched. */
    private static final int END = 64;

    private BypassCache() {}

    /** The statement without the words. */
    static String removed(String query) {
        Matcher bypass = BYPASS.matcher(query).region(Math.max(0, query.length() - END), query.length());
        return bypass.find() && SELECT.matcher(query).lookingAt() ? query.substring(0, bypass.start()) : query;
    }
}
