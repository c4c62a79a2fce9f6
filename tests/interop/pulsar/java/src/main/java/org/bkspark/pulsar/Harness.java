package org.bkspark.pulsar;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * A process that does what its standard input says, one JSON object a line, one after the other.
 *
 * <p>Request: {@code {"id": 7, "broker": "one", "command": "read", ...}}. Answer: {@code {"id": 7, "ok": true, ...}} or {@code {"id": 7,
 * "ok": false, "error": "NotFoundException", "message": ...}}. The process ends when its input ends. The commands are in
 * {@link Broker} and {@link Topics}.
 */
public final class Harness {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Harness() {}

    public static void main(String[] args) throws IOException {
        PrintStream protocol = System.out;
        // A library that prints must not break the protocol.
        System.setOut(System.err);
        Map<String, Broker> brokers = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode request = (ObjectNode) JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode();
            try {
                Broker broker = brokers.computeIfAbsent(request.get("broker").asText(), name -> new Broker());
                new Topics(broker, JSON).run(request, answer);
                answer.put("ok", true);
            } catch (Exception | LinkageError e) {
                e.printStackTrace();
                answer.put("ok", false).put("error", e.getClass().getSimpleName()).put("message", String.valueOf(e));
            }
            answer.set("id", request.get("id"));
            protocol.println(answer);
            protocol.flush();
        }
        // Nobody needs what the broker has: a stop in order takes seconds. Its threads would keep the process alive.
        Runtime.getRuntime().halt(0);
    }
}
