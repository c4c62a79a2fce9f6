package org.bkspark.interop;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Base64;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.ReadHandle;

/** Commands on ledgers that stay open for reading: last add confirmed, long poll, entries, tail. */
final class ReaderCommands {
    private final Commands commands;
    private final Map<String, ReadHandle> readers = new ConcurrentHashMap<>();
    private final AtomicLong nextReader = new AtomicLong(1);

    ReaderCommands(Commands commands) {
        this.commands = commands;
    }

    ObjectNode run(ObjectNode request, Commands.Deadline deadline) throws Exception {
        return switch (request.get("command").asText()) {
            case "open_reader" -> open(request, deadline);
            case "read_lac" -> readLastAddConfirmed(request, deadline);
            case "long_poll" -> longPoll(request, deadline);
            case "read_entries" -> readEntries(request, deadline);
            case "tail" -> tail(request, deadline);
            case "close_reader" -> close(request, deadline);
            default -> throw new IllegalArgumentException("not a command on readers: " + request.get("command"));
        };
    }

    private ObjectNode open(ObjectNode request, Commands.Deadline deadline) throws Exception {
        ReadHandle reader = deadline.await(commands.client(request)
                .newOpenLedgerOp()
                .withLedgerId(request.get("ledger_id").asLong())
                .withRecovery(request.get("recovery").asBoolean())
                .withDigestType(Commands.digest(request))
                .withPassword(Commands.password(request))
                .execute());
        String name = "reader-" + nextReader.getAndIncrement();
        readers.put(name, reader);
        return state(reader).put("reader", name);
    }

    /** {@code how}: {@code read} waits for a covering part of the bookies, {@code try} takes the best answer. */
    private ObjectNode readLastAddConfirmed(ObjectNode request, Commands.Deadline deadline) throws Exception {
        ReadHandle reader = reader(request);
        long found = deadline.await(switch (request.get("how").asText()) {
            case "read" -> reader.readLastAddConfirmedAsync();
            case "try" -> reader.tryReadLastAddConfirmedAsync();
            default -> throw new IllegalArgumentException("how must be read or try, not " + request.get("how"));
        });
        return state(reader).put("found", found);
    }

    /** Waits {@code poll_timeout_ms} for {@code entry_id}; the answer has {@code payload} if it came. */
    private ObjectNode longPoll(ObjectNode request, Commands.Deadline deadline) throws Exception {
        try (LastConfirmedAndEntry polled = deadline.await(poll(reader(request), request, request.get("entry_id").asLong()))) {
            ObjectNode answer = commands.json.createObjectNode();
            answer.put("last_add_confirmed", polled.getLastAddConfirmed());
            if (polled.hasEntry()) {
                answer.put("entry_id", polled.getEntry().getEntryId());
                answer.put("payload", Base64.getEncoder().encodeToString(polled.getEntry().getEntryBytes()));
            }
            return answer;
        }
    }

    private static CompletableFuture<LastConfirmedAndEntry> poll(ReadHandle reader, ObjectNode request, long entryId) {
        return reader.readLastAddConfirmedAndEntryAsync(
                entryId, request.get("poll_timeout_ms").asLong(), request.path("parallel").asBoolean());
    }

    private ObjectNode readEntries(ObjectNode request, Commands.Deadline deadline) throws Exception {
        ReadHandle reader = reader(request);
        long first = request.get("first_entry_id").asLong();
        long last = request.get("last_entry_id").asLong();
        CompletableFuture<LedgerEntries> future = request.path("unconfirmed").asBoolean()
                ? reader.readUnconfirmedAsync(first, last)
                : reader.readAsync(first, last);
        Commands.Collector collector = commands.new Collector(request.path("with_payloads").asBoolean());
        try (LedgerEntries entries = deadline.await(future)) {
            collector.add(entries, first);
        }
        return collector.answer();
    }

    /**
     * Follows a ledger from {@code first_entry_id}, by long polls where nothing is confirmed yet, until it is closed
     * or {@code count} entries were read.
     */
    private ObjectNode tail(ObjectNode request, Commands.Deadline deadline) throws Exception {
        ReadHandle reader = reader(request);
        long next = request.get("first_entry_id").asLong();
        long end = request.has("count") ? next + request.get("count").asLong() : Long.MAX_VALUE;
        Commands.Collector collector = commands.new Collector(request.path("with_payloads").asBoolean());
        long polls = 0;
        while (next < end) {
            boolean closed = reader.isClosed();
            // The handle learns that the ledger is closed a moment before it learns the last entry.
            long lastAddConfirmed =
                    closed ? deadline.await(reader.readLastAddConfirmedAsync()) : reader.getLastAddConfirmed();
            if (next <= lastAddConfirmed) {
                long last = Math.min(Math.min(end - 1, lastAddConfirmed), next + Commands.MAX_ENTRIES_AT_ONCE - 1);
                try (LedgerEntries entries = deadline.await(reader.readAsync(next, last))) {
                    next = collector.add(entries, next);
                }
            } else if (closed) {
                break;
            } else {
                polls++;
                deadline.await(poll(reader, request, next)).close();
            }
        }
        ObjectNode answer = collector.answer();
        answer.put("polls", polls);
        answer.put("next_entry_id", next);
        answer.put("last_add_confirmed", reader.getLastAddConfirmed());
        answer.put("length", reader.getLength());
        answer.put("closed", reader.isClosed());
        return answer;
    }

    private ObjectNode close(ObjectNode request, Commands.Deadline deadline) throws Exception {
        deadline.await(readers.remove(request.get("reader").asText()).closeAsync());
        return commands.json.createObjectNode();
    }

    private ObjectNode state(ReadHandle reader) {
        ObjectNode answer = commands.json.createObjectNode();
        answer.put("last_add_confirmed", reader.getLastAddConfirmed());
        answer.put("length", reader.getLength());
        answer.put("closed", reader.isClosed());
        return answer;
    }

    private ReadHandle reader(ObjectNode request) {
        ReadHandle reader = readers.get(request.get("reader").asText());
        if (reader == null) {
            throw new IllegalArgumentException("no open reader " + request.get("reader"));
        }
        return reader;
    }
}
