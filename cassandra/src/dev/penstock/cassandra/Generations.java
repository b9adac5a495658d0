package dev.penstock.cassandra;

import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.TimeUnit;

import com.google.common.util.concurrent.Uninterruptibles;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import org.apache.cassandra.concurrent.ScheduledExecutors;
import org.apache.cassandra.db.ConsistencyLevel;
import org.apache.cassandra.db.DecoratedKey;
import org.apache.cassandra.dht.Token;
import org.apache.cassandra.exceptions.InvalidRequestException;
import org.apache.cassandra.service.StorageService;

/**
 * The generations this node knows, and the choice of a write's stream.
 *
 * A write with timestamp W goes to the generation that operates at W. Readers leave a generation a little after its
 * end, so a write far from the present could be missed: it is refused.
 */
public final class Generations {
    private static final Logger logger = LoggerFactory.getLogger(Generations.class);
    private static final long LEEWAY_MICROS = 5_000_000;
    private static final long LEEWAY_MILLIS = LEEWAY_MICROS / 1000;
    private static final long RELOAD_SECONDS = 5;
    private static final long POLL_MILLIS = 50;
    private static final DateTimeFormatter TIME =
        DateTimeFormatter.ofPattern("uuuu/MM/dd HH:mm:ss.SSSSSS").withZone(ZoneOffset.UTC);

    /** Ascending by start; null until the first request. */
    private static volatile Generation[] known;

    private Generations() {}

    /** Begins to look for the node to join its ring, so that the generation is there when clients are let in. */
    static void startWithNode() {
        Thread starter = new Thread(Generations::startWhenJoined, "CDC generations");
        starter.setDaemon(true);
        starter.start();
    }

    private static void startWhenJoined() {
        while (!StorageService.instance.isNormal())
            Uninterruptibles.sleepUninterruptibly(POLL_MILLIS, TimeUnit.MILLISECONDS);
        try {
            start();
        }
        catch (RuntimeException e) {
            logger.warn("Could not prepare the CDC generations, the next request tries again", e);
        }
    }

    /** Makes sure that there is a generation for the ring as it is; requests wait for that. */
    static void start() {
        if (known == null)
            load();
    }

    private static synchronized void load() {
        if (known != null)
            return;
        GenerationTables.create();
        Generation[] loaded = read(new Generation[0]);
        long[] ring = ring();
        if (loaded.length == 0 || !loaded[loaded.length - 1].hasRanges(ring))
            loaded = with(loaded, publish(loaded, ring));
        known = loaded;
        ScheduledExecutors.optionalTasks.scheduleWithFixedDelay(Generations::reload, RELOAD_SECONDS, RELOAD_SECONDS,
                                                                TimeUnit.SECONDS);
    }

    /** Another node publishes a generation some time before it starts. */
    private static void reload() {
        try {
            known = read(known);
        }
        catch (RuntimeException e) {
            logger.warn("Could not look for new CDC generations, trying again in {} s", RELOAD_SECONDS, e);
        }
    }

    private static Generation[] read(Generation[] loaded) {
        List<Generation> all = new ArrayList<>(List.of(loaded));
        for (long start : GenerationTables.starts(level()))
            if (all.stream().noneMatch(g -> g.start == start))
                all.add(GenerationTables.read(start, level()));
        all.sort(Comparator.comparingLong(g -> g.start));
        return all.toArray(new Generation[0]);
    }

    /**
     * A ring's first generation begins a little in the past, for clients whose clock is behind. A later one begins when
     * every node had the time to learn of it: also one whose next look into the table fails.
     */
    private static Generation publish(Generation[] earlier, long[] ring) {
        long now = System.currentTimeMillis();
        long start = earlier.length == 0 ? now - LEEWAY_MILLIS
                                         : Math.max(now + spread() + LEEWAY_MILLIS,
                                                    earlier[earlier.length - 1].start + 1);
        Generation generation = Generation.create(start, ring);
        GenerationTables.publish(generation, level());
        logger.info("New CDC generation with {} streams from {} ms", ring.length, start);
        return generation;
    }

    /** Milliseconds until every node knows what is in the tables now. */
    private static long spread() {
        return 2 * Math.max(StorageService.RING_DELAY_MILLIS, TimeUnit.SECONDS.toMillis(RELOAD_SECONDS));
    }

    private static Generation[] with(Generation[] earlier, Generation last) {
        List<Generation> all = new ArrayList<>(List.of(earlier));
        all.add(last);
        return all.toArray(new Generation[0]);
    }

    private static long[] ring() {
        return StorageService.instance.getTokenMetadata().sortedTokens().stream().mapToLong(Token::getLongValue)
                                      .toArray();
    }

    private static ConsistencyLevel level() {
        return StorageService.instance.getTokenMetadata().getAllEndpoints().size() > 1 ? ConsistencyLevel.QUORUM
                                                                                       : ConsistencyLevel.ONE;
    }

    /** The stream for a write to a token at a time in microseconds. */
    static DecoratedKey stream(long timestamp, Token token) {
        long now = System.currentTimeMillis() * 1000;
        if (timestamp > now + LEEWAY_MICROS)
            throw future(timestamp, now);
        Generation generation = operating(timestamp);
        if (timestamp <= now - LEEWAY_MICROS && (generation == null || generation != operating(now)))
            throw past(timestamp, now);
        if (generation == null)
            throw new InvalidRequestException("cdc::metadata::get_stream: could not find any CDC stream for timestamp "
                                              + text(timestamp) + ". Are we in the middle of a cluster upgrade?");
        return generation.stream(token.getLongValue());
    }

    private static Generation operating(long timestamp) {
        Generation[] generations = known;
        for (int i = generations.length - 1; i >= 0; i--)
            if (generations[i].startMicros() <= timestamp)
                return generations[i];
        return null;
    }

    private static InvalidRequestException future(long timestamp, long now) {
        return new InvalidRequestException(String.format(
            "cdc: attempted to get a stream \"from the future\" (%s; current server time: %s). With CDC you cannot send"
            + " writes with timestamps arbitrarily into the future, because we don't know what streams will be used at"
            + " that time.\nWe *do* allow sending writes into the near future, but our ability to do that is limited."
            + " If you really must use your own timestamps, then make sure your clocks are well-synchronized  with the"
            + " database's clocks.", text(timestamp), text(now)));
    }

    private static InvalidRequestException past(long timestamp, long now) {
        return new InvalidRequestException(String.format(
            "cdc: attempted to get a stream \"from the past\" (%s; current server time: %s). With CDC you cannot send"
            + " writes with timestamps too far into the past, because that would break consistency properties.\n"
            + "We *do* allow sending writes into the near past, but our ability to do that is limited. Are you using"
            + " client-side timestamps? Make sure your clocks are well-synchronized with the database's clocks.",
            text(timestamp), text(now)));
    }

    /** Microseconds as a time in UTC. */
    private static String text(long timestamp) {
        return TIME.format(Instant.EPOCH.plus(timestamp, ChronoUnit.MICROS));
    }
}
