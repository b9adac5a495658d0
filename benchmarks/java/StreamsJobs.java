import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.TimestampExtractor;

/**
 * The jobs of benchmarks/streams.py in Kafka Streams: job servers in out table events threads folder name, and perhaps a
 * commit interval in milliseconds, which also switches off the caches and the producer's linger (100 ms by default).
 */
public class StreamsJobs {
  static final ObjectMapper JSON = new ObjectMapper();
  static final AtomicLong seen = new AtomicLong();

  /** The event's own time; each thread parses a record once for it, as a deserializer of its own would. */
  public static class EventTime implements TimestampExtractor {
    @Override
    public long extract(ConsumerRecord<Object, Object> record, long partitionTime) {
      return ((JsonNode) record.value()).get("ts").asLong();
    }
  }

  public static class JsonSerde extends Serdes.WrapperSerde<JsonNode> {
    public JsonSerde() {
      super(
          (topic, node) -> {
            try {
              return node == null ? null : JSON.writeValueAsBytes(node);
            } catch (Exception error) {
              throw new RuntimeException(error);
            }
          },
          (topic, bytes) -> {
            try {
              return bytes == null ? null : JSON.readTree(bytes);
            } catch (Exception error) {
              throw new RuntimeException(error);
            }
          });
    }
  }

  public static void main(String[] words) throws Exception {
    String job = words[0], servers = words[1], in = words[2], out = words[3], table = words[4];
    long events = Long.parseLong(words[5]);
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, words[8]);
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, words[6]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, words[7]);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "1000");
    if (words.length > 9) {
      settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, words[9]);
      settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
      settings.put("producer.linger.ms", "0");
    }
    settings.put("auto.offset.reset", "earliest");
    settings.put("producer.compression.type", "lz4");
    settings.put("producer.acks", "all");
    StreamsBuilder builder = new StreamsBuilder();
    Consumed<String, JsonNode> consumed = Consumed.with(Serdes.String(), new JsonSerde());
    KTable<String, JsonNode> users = job.equals("enrich") ? builder.table(table, consumed) : null;
    KStream<String, JsonNode> clicks =
        builder.stream(in, consumed.withTimestampExtractor(new EventTime())).peek((key, value) -> count(events));
    Produced<String, String> text = Produced.with(Serdes.String(), Serdes.String());
    switch (job) {
      case "stateless" ->
          clicks
              .filter((key, value) -> value.get("price").asDouble() >= 10)
              .mapValues(StreamsJobs::slim)
              .to(out, Produced.with(Serdes.String(), new JsonSerde()));
      case "enrich" ->
          clicks
              .leftJoin(users, StreamsJobs::enriched)
              .to(out, Produced.with(Serdes.String(), new JsonSerde()));
      case "tumbling" ->
          clicks
              .groupByKey(Grouped.with(Serdes.String(), new JsonSerde()))
              .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofSeconds(10)))
              .count()
              .toStream()
              .map(StreamsJobs::counted)
              .to(out, text);
      case "latest" ->
          clicks
              .groupByKey(Grouped.with(Serdes.String(), new JsonSerde()))
              .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofSeconds(10)))
              .aggregate(
                  JSON::createObjectNode,
                  (key, value, made) -> latest(value, made),
                  Materialized.with(Serdes.String(), new JsonSerde()))
              .toStream()
              .map((key, value) -> KeyValue.pair(key.key(), value))
              .to(out, Produced.with(Serdes.String(), new JsonSerde()));
      case "session" ->
          clicks
              .groupByKey(Grouped.with(Serdes.String(), new JsonSerde()))
              .windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofSeconds(30), Duration.ofSeconds(10)))
              .count()
              .toStream()
              .filter((key, value) -> value != null)
              .map(StreamsJobs::counted)
              .to(out, text);
      default -> throw new IllegalArgumentException(job);
    }
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    CountDownLatch stopped = new CountDownLatch(1);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> stopped.countDown()));
    streams.start();
    while (seen.get() < events && stopped.getCount() > 0) {
      Thread.sleep(20);
    }
    streams.close(Duration.ofSeconds(60));
    tell(events);
    Runtime.getRuntime().halt(0);
  }

  static JsonNode slim(JsonNode value) {
    ObjectNode made = JSON.createObjectNode();
    made.set("id", value.get("id"));
    made.set("user", value.get("user"));
    made.put("cents", Math.round(value.get("price").asDouble() * 100));
    made.set("ts", value.get("ts"));
    return made;
  }

  static JsonNode enriched(JsonNode value, JsonNode user) {
    ObjectNode made = (ObjectNode) slim(value);
    made.set("name", user == null ? null : user.get("name"));
    made.set("city", user == null ? null : user.get("city"));
    return made;
  }

  /** The number of events, and the time of the newest. */
  static JsonNode latest(JsonNode value, JsonNode made) {
    ObjectNode next = JSON.createObjectNode();
    next.set("user", value.get("user"));
    next.put("n", made.path("n").asLong() + 1);
    next.put("ts", Math.max(made.path("ts").asLong(), value.get("ts").asLong()));
    return next;
  }

  static KeyValue<String, String> counted(Windowed<String> key, Long count) {
    long start = key.window().start();
    return KeyValue.pair(key.key(), "{\"user\":\"" + key.key() + "\",\"start\":" + start + ",\"n\":" + count + "}");
  }

  /** A line at each tenth: events, wall clock and CPU of this process in milliseconds. */
  static void count(long events) {
    long now = seen.incrementAndGet();
    if (now == 1 || now % Math.max(1, events / 10) == 0) {
      tell(now);
    }
  }

  static synchronized void tell(long events) {
    OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    System.out.println(events + " " + System.currentTimeMillis() + " " + system.getProcessCpuTime() / 1_000_000);
  }
}
