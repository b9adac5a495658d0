import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;

/** Posts an event twice with the JDK's own client: arguments are the URL, the API key and the event. */
class Post {
    public static void main(String[] arguments) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(arguments[0]))
                .header("Content-Type", "application/json")
                .header("X-API-Key", arguments[1])
                .POST(BodyPublishers.ofString(arguments[2]))
                .build();
        var client = HttpClient.newHttpClient();
        for (int n = 0; n < 2; n++) {
            var answer = client.send(request, BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.body());
        }
    }
}
