import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.Configurable;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.transforms.Transformation;
import org.apache.kafka.connect.transforms.predicates.Predicate;

/** Applies Kafka Connect's transforms to records: a line of JSON on standard input for each, and one as the answer. */
class KafkaTransforms {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final JsonConverter CONVERTER = new JsonConverter();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        CONVERTER.configure(Map.of("schemas.enable", "true", "replace.null.with.default", "false"), false);
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(answer(JSON.readTree(line)));
        }
    }

    private static String answer(JsonNode asked) throws Exception {
        SinkRecord record;
        try {
            record = transformed(asked.get("steps"), recordOf(asked));
        } catch (RuntimeException error) {
            return JSON.createObjectNode().put("failed", String.valueOf(error.getMessage())).toString();
        }
        if (record == null) {
            return "{\"dropped\": null}";
        }
        ObjectNode found = JSON.createObjectNode().put("topic", record.topic());
        ArrayNode headers = found.putArray("headers");
        try {
            found.set("key", written(record.keySchema(), record.key()));
            found.set("value", written(record.valueSchema(), record.value()));
            for (var header : record.headers()) {
                headers.addArray().add(header.key()).add(written(header.schema(), header.value()));
            }
        } catch (RuntimeException error) {
            return "{\"unwritable\": null}";
        }
        return found.toString();
    }

    private static SinkRecord transformed(JsonNode steps, SinkRecord record) throws Exception {
        for (JsonNode step : steps) {
            JsonNode predicate = step.get("predicate");
            if (predicate != null) {
                @SuppressWarnings("unchecked")
                var test = (Predicate<SinkRecord>) made(predicate);
                if (test.test(record) == step.path("negate").asBoolean()) {
                    continue;
                }
            }
            @SuppressWarnings("unchecked")
            var transform = (Transformation<SinkRecord>) made(step);
            record = transform.apply(record);
            if (record == null) {
                return null;
            }
        }
        return record;
    }

    private static Configurable made(JsonNode about) throws Exception {
        Map<String, Object> options = new HashMap<>();
        about.get("options").properties().forEach(one -> options.put(one.getKey(), one.getValue().asText()));
        var made = (Configurable) Class.forName(about.get("type").asText()).getDeclaredConstructor().newInstance();
        made.configure(options);
        return made;
    }

    private static SinkRecord recordOf(JsonNode asked) throws Exception {
        var headers = new ConnectHeaders();
        for (JsonNode header : asked.get("headers")) {
            headers.add(header.get(0).asText(), header.get(1).asText(), null);
        }
        SchemaAndValue key = read(asked.get("key"));
        SchemaAndValue value = read(asked.get("value"));
        Long millis = asked.get("millis").isNull() ? null : asked.get("millis").asLong();
        return new SinkRecord(asked.get("topic").asText(), asked.get("partition").asInt(), key.schema(), key.value(),
                value.schema(), value.value(), asked.get("offset").asLong(), millis, TimestampType.CREATE_TIME, headers);
    }

    private static SchemaAndValue read(JsonNode part) throws Exception {
        boolean nothing = part.get("schema").isNull() && part.get("payload").isNull();
        return nothing ? SchemaAndValue.NULL : CONVERTER.toConnectData("topic", JSON.writeValueAsBytes(part));
    }

    private static JsonNode written(Schema schema, Object value) throws Exception {
        byte[] data = CONVERTER.fromConnectData("topic", schema, value);
        return data == null ? JSON.createObjectNode().putNull("schema").putNull("payload") : JSON.readTree(data);
    }
}
