package org.bkspark.interop;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.bookkeeper.client.api.BKException;

/**
 * A process that does what its standard input says, one JSON object a line.
 *
 * <p>Request: {@code {"id": 7, "command": "read", "timeout_ms": 30000, ...}}. Answer, in any order:
 * {@code {"id": 7, "ok": true, ...}} or {@code {"id": 7, "ok": false, "error": "BKLedgerFencedException",
 * "code": -101, "message": ...}}. Requests run side by side, so one that hangs holds up no other. The process ends
 * when its input ends. The commands are in {@link Commands}.
 */
public final class Harness {
    private static final int MAX_PARALLEL_COMMANDS = 16;

    private final ObjectMapper json = new ObjectMapper();
    private final PrintStream out;
    private final Commands commands;
    private final ExecutorService workers = Executors.newFixedThreadPool(MAX_PARALLEL_COMMANDS, task -> {
        Thread thread = new Thread(task, "command");
        thread.setDaemon(true);
        return thread;
    });

    private Harness(PrintStream out) {
        this.out = out;
        this.commands = new Commands(json);
    }

    public static void main(String[] args) throws IOException {
        PrintStream protocol = System.out;
        // A library that prints must not break the protocol.
        System.setOut(System.err);
        new Harness(protocol).run();
        System.exit(0);
    }

    private void run() throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode request = (ObjectNode) json.readTree(line);
            workers.execute(() -> answer(request));
        }
        commands.close();
    }

    private void answer(ObjectNode request) {
        ObjectNode answer;
        try {
            answer = commands.run(request);
            answer.put("ok", true);
        } catch (Exception | LinkageError e) {
            answer = failure(e);
        }
        answer.set("id", request.get("id"));
        synchronized (out) {
            out.println(answer);
            out.flush();
        }
    }

    private ObjectNode failure(Throwable thrown) {
        Throwable cause = thrown;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException) && cause.getCause() != null) {
            cause = cause.getCause();
        }
        ObjectNode answer = json.createObjectNode();
        answer.put("ok", false);
        answer.put("error", cause.getClass().getSimpleName());
        answer.put("message", String.valueOf(cause.getMessage()));
        if (cause instanceof BKException e) {
            answer.put("code", e.getCode());
        } else {
            cause.printStackTrace();
        }
        return answer;
    }
}
