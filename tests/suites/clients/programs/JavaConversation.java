import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Java's own HTTP client, which offers HTTP/2 with every request to an `http:` address: one conversation with
 * a tool per case, over chat completions. Prints the answers as one line of JSON, by case.
 */
public class JavaConversation {
    static final HttpClient CLIENT = HttpClient.newHttpClient();
    static final String TOOLS = "[{\"type\":\"function\",\"function\":{\"name\":\"find\",\"description\":\"Find.\","
        + "\"parameters\":{\"type\":\"object\",\"properties\":{\"key\":{\"type\":\"string\"}}}}}]";

    public static void main(String[] arguments) throws Exception {
        String cases = Files.readString(Path.of(arguments[0]));
        List<String> answers = new ArrayList<>();
        for (String item : cases.split("(?=\\{\"name\")")) {
            if (item.startsWith("{\"name\"")) {
                answers.add("\"" + text(item, "name") + "\": \"" + play(item) + "\"");
            }
        }
        System.out.println("{" + String.join(", ", answers) + "}");
    }

    static String play(String item) throws Exception {
        String user = "{\"role\":\"user\",\"content\":\"" + text(item, "prompt") + "\"}";
        boolean streams = item.contains("\"streams\": true");
        String first = ask(item, user, false);
        String message = object(first, "message");
        String result = "{\"role\":\"tool\",\"content\":\"a is 47\",\"tool_call_id\":\"" + text(message, "id") + "\"}";
        String second = ask(item, user + "," + message + "," + result, streams);
        if (!streams) {
            return text(object(second, "message"), "content");
        }
        StringBuilder said = new StringBuilder();
        Matcher pieces = Pattern.compile("\"delta\": ?\\{[^}]*\"content\": ?\"([^\"]*)\"").matcher(second);
        while (pieces.find()) {
            said.append(pieces.group(1));
        }
        return said.toString();
    }

    static String ask(String item, String messages, boolean stream) throws Exception {
        String body = "{\"model\":\"policy\",\"stream\":" + stream + ",\"messages\":[" + messages + "],\"tools\":" + TOOLS + "}";
        HttpRequest request = HttpRequest.newBuilder(URI.create(text(item, "OPENAI_BASE_URL") + "/chat/completions"))
            .header("Authorization", "Bearer " + text(item, "OPENAI_API_KEY"))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(body)).build();
        HttpResponse<String> response = CLIENT.send(request, HttpResponse.BodyHandlers.ofString());
        if (response.statusCode() != 200) {
            throw new IllegalStateException(response.statusCode() + ": " + response.body());
        }
        return response.body();
    }

    /** The first text with this name. */
    static String text(String json, String name) {
        Matcher found = Pattern.compile("\"" + name + "\": ?\"((?:[^\"\\\\]|\\\\.)*)\"").matcher(json);
        if (!found.find()) {
            throw new IllegalStateException("no " + name + " in " + json);
        }
        return found.group(1);
    }

    /** The first object with this name, whole. */
    static String object(String json, String name) {
        int start = json.indexOf('{', json.indexOf("\"" + name + "\""));
        boolean quoted = false;
        int depth = 0;
        for (int at = start; at < json.length(); at++) {
            char letter = json.charAt(at);
            if (quoted && letter == '\\') {
                at++;
            } else if (letter == '"') {
                quoted = !quoted;
            } else if (!quoted && letter == '{') {
                depth++;
            } else if (!quoted && letter == '}' && --depth == 0) {
                return json.substring(start, at + 1);
            }
        }
        throw new IllegalStateException("no end of " + name + " in " + json);
    }
}
