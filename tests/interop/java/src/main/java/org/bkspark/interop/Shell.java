package org.bkspark.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.util.EntryFormatter;
import org.apache.bookkeeper.util.LedgerIdFormatter;

/**
 * Apache's {@code bookkeeper shell}, command after command in one process.
 *
 * <p>Each line of standard input is {@code {"conf": path, "args": ["readlog", "0"]}}. What a command prints and logs
 * goes to standard output and error; after it comes a line of {@link #END} and its exit status. The process ends when
 * its input ends.
 */
public final class Shell {
    private static final String END = "=== exit status ";

    private Shell() {}

    public static void main(String[] args) throws IOException {
        ObjectMapper json = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = json.readTree(line);
            List<String> command = new ArrayList<>();
            request.get("args").forEach(argument -> command.add(argument.asText()));
            int status;
            try {
                status = run(Path.of(request.get("conf").asText()), command.toArray(String[]::new));
            } catch (Exception | LinkageError e) {
                e.printStackTrace();
                status = -1;
            }
            System.err.flush();
            System.out.println(END + status);
            System.out.flush();
        }
        // Clients of commands may have left threads behind.
        System.exit(0);
    }

    /** With the formatters that are the shell's defaults: ids as numbers, payloads as text. */
    private static int run(Path confPath, String[] command) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.loadConf(confPath.toUri().toURL());
        BookieShell shell =
                new BookieShell(LedgerIdFormatter.LONG_LEDGERID_FORMATTER, EntryFormatter.STRING_FORMATTER);
        shell.setConf(conf);
        return shell.run(command);
    }
}
