package org.bkspark.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;

/**
 * The commands of the harness: each takes a request object and gives an answer object.
 *
 * <p>Common fields: {@code uri} (metadata service URI), {@code wire} (2 or 3), {@code digest} (CRC32, CRC32C, MAC,
 * DUMMY), {@code password} (text), {@code timeout_ms}.
 */
final class Commands implements AutoCloseable {
    /** Bounds of what is in flight or in memory at once, so that big ledgers fit a small heap. */
    static final int MAX_ENTRIES_AT_ONCE = 1000;
    static final long MAX_BYTES_AT_ONCE = 32L << 20;

    final ObjectMapper json;
    private final Clients clients = new Clients();
    private final Map<String, WriteHandle> writers = new ConcurrentHashMap<>();
    private final AtomicLong nextWriter = new AtomicLong(1);
    private final WriterCommands writerCommands = new WriterCommands(this);
    private final ReaderCommands readerCommands = new ReaderCommands(this);
    private final BenchCommands benchCommands = new BenchCommands(this);
    private final ReplicationCommands replicationCommands;

    Commands(ObjectMapper json) {
        this.json = json;
        this.replicationCommands = new ReplicationCommands(json);
    }

    ObjectNode run(ObjectNode request) throws Exception {
        Deadline deadline = new Deadline(request.get("timeout_ms").asLong());
        return switch (request.get("command").asText()) {
            case "ping" -> ping();
            case "init_cluster" -> initCluster(request);
            case "list_bookies" -> listBookies(request);
            case "forget" -> json.createObjectNode().put("closed", clients.forget(request.get("uri").asText()));
            case "create" -> create(request, deadline);
            case "append" -> append(request, deadline);
            case "close" -> closeWriter(request, deadline);
            case "read" -> read(request, deadline);
            case "metadata" -> metadata(request, deadline);
            case "delete" -> delete(request, deadline);
            case "create_adv", "append_adv", "force", "writer_state", "abandon" -> writerCommands.run(request, deadline);
            case "open_reader", "read_lac", "long_poll", "read_entries", "tail", "close_reader" ->
                    readerCommands.run(request, deadline);
            case "bench_write", "bench_read" -> benchCommands.run(request, deadline);
            case "replication", "replication_end" -> replicationCommands.run(request);
            default -> throw new IllegalArgumentException("unknown command " + request.get("command"));
        };
    }

    @Override
    public void close() {
        replicationCommands.close();
        clients.close();
    }

    private ObjectNode ping() {
        ObjectNode answer = json.createObjectNode();
        answer.put("bookkeeper", String.valueOf(BookKeeper.class.getPackage().getImplementationVersion()));
        answer.put("java", Runtime.version().toString());
        return answer;
    }

    /** What {@code bookkeeper shell initnewcluster} does. */
    private ObjectNode initCluster(ObjectNode request) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri(request.get("uri").asText());
        return json.createObjectNode().put("created", BookKeeperAdmin.initNewCluster(conf));
    }

    private ObjectNode listBookies(ObjectNode request) throws Exception {
        ObjectNode answer = json.createObjectNode();
        // Not closed: it would close the client, which is shared.
        @SuppressWarnings("resource")
        BookKeeperAdmin admin = new BookKeeperAdmin(client(request));
        answer.set("writable", ids(admin.getAvailableBookies()));
        answer.set("readonly", ids(admin.getReadOnlyBookies()));
        return answer;
    }

    private ObjectNode create(ObjectNode request, Deadline deadline) throws Exception {
        return added(deadline.await(creation(request).execute()));
    }

    /** A ledger to be, as {@code create} and {@code create_adv} say it. */
    CreateBuilder creation(ObjectNode request) throws Exception {
        CreateBuilder creation = client(request)
                .newCreateLedgerOp()
                .withEnsembleSize(request.get("ensemble_size").asInt())
                .withWriteQuorumSize(request.get("write_quorum_size").asInt())
                .withAckQuorumSize(request.get("ack_quorum_size").asInt())
                .withDigestType(digest(request))
                .withPassword(password(request));
        if (request.path("deferred_sync").asBoolean()) {
            creation.withWriteFlags(WriteFlag.DEFERRED_SYNC);
        }
        Map<String, byte[]> custom = new HashMap<>();
        request.path("custom_metadata").properties().forEach(entry ->
                custom.put(entry.getKey(), Base64.getDecoder().decode(entry.getValue().asText())));
        return creation.withCustomMetadata(custom);
    }

    /** Keeps an open ledger; its name is how later commands call it. */
    ObjectNode added(WriteHandle writer) {
        String name = "writer-" + nextWriter.getAndIncrement();
        writers.put(name, writer);
        return json.createObjectNode().put("writer", name).put("ledger_id", writer.getId());
    }

    /** Forgets an open ledger without closing it. */
    void dropped(ObjectNode request) {
        writers.remove(request.get("writer").asText());
    }

    /** Appends in a pipeline; every entry must get the id after the one before. */
    private ObjectNode append(ObjectNode request, Deadline deadline) throws Exception {
        WriteHandle writer = writer(request);
        Payloads payloads = new Payloads(request.get("payloads"));
        int inFlight = request.path("in_flight").asInt(MAX_ENTRIES_AT_ONCE);
        ArrayDeque<CompletableFuture<Long>> pending = new ArrayDeque<>();
        ArrayDeque<Integer> pendingSizes = new ArrayDeque<>();
        long pendingBytes = 0;
        long first = writer.getLastAddPushed() + 1;
        long next = first;
        for (int i = 0; i < payloads.count(); i++) {
            byte[] payload = payloads.get(i);
            while (pending.size() >= inFlight || (!pending.isEmpty() && pendingBytes + payload.length > MAX_BYTES_AT_ONCE)) {
                expectId(next++, deadline.await(pending.remove()));
                pendingBytes -= pendingSizes.remove();
            }
            pending.add(writer.appendAsync(payload));
            pendingSizes.add(payload.length);
            pendingBytes += payload.length;
        }
        while (!pending.isEmpty()) {
            expectId(next++, deadline.await(pending.remove()));
        }
        ObjectNode answer = json.createObjectNode();
        answer.put("first_entry_id", first);
        answer.put("last_entry_id", next - 1);
        answer.put("last_add_confirmed", writer.getLastAddConfirmed());
        answer.put("length", writer.getLength());
        return answer;
    }

    static void expectId(long expected, long actual) {
        if (expected != actual) {
            throw new IllegalStateException("entry " + actual + " was confirmed where " + expected + " was due");
        }
    }

    private ObjectNode closeWriter(ObjectNode request, Deadline deadline) throws Exception {
        WriteHandle writer = writer(request);
        deadline.await(writer.closeAsync());
        writers.remove(request.get("writer").asText());
        ObjectNode answer = json.createObjectNode();
        answer.put("ledger_id", writer.getId());
        answer.put("last_entry_id", writer.getLedgerMetadata().getLastEntryId());
        answer.put("length", writer.getLedgerMetadata().getLength());
        return answer;
    }

    /**
     * Opens a ledger with ({@code recovery}) or without recovery and reads {@code first_entry_id} (default 0) to
     * {@code last_entry_id} (default: the last add confirmed) in order; {@code unconfirmed} reads past that one.
     */
    private ObjectNode read(ObjectNode request, Deadline deadline) throws Exception {
        ReadHandle reader = deadline.await(client(request)
                .newOpenLedgerOp()
                .withLedgerId(request.get("ledger_id").asLong())
                .withRecovery(request.get("recovery").asBoolean())
                .withDigestType(digest(request))
                .withPassword(password(request))
                .execute());
        try {
            long lastAddConfirmed = reader.getLastAddConfirmed();
            long first = request.path("first_entry_id").asLong(0);
            long last = request.path("last_entry_id").asLong(lastAddConfirmed);
            Collector collector = new Collector(request.path("with_payloads").asBoolean());
            long step = MAX_ENTRIES_AT_ONCE;
            if (lastAddConfirmed >= 0 && reader.getLength() > 0) {
                step = Math.max(1, Math.min(step, MAX_BYTES_AT_ONCE / (reader.getLength() / (lastAddConfirmed + 1) + 1)));
            }
            boolean batch = request.path("batch").asBoolean();
            boolean unconfirmed = request.path("unconfirmed").asBoolean();
            long next = first;
            while (next <= last) {
                long end = Math.min(last, next + step - 1);
                CompletableFuture<LedgerEntries> future;
                if (batch) {
                    future = reader.batchReadAsync(next, (int) (end - next + 1), MAX_BYTES_AT_ONCE);
                } else if (unconfirmed) {
                    future = reader.readUnconfirmedAsync(next, end);
                } else {
                    future = reader.readAsync(next, end);
                }
                try (LedgerEntries entries = deadline.await(future)) {
                    next = collector.add(entries, next);
                }
            }
            ObjectNode answer = collector.answer();
            answer.put("last_add_confirmed", lastAddConfirmed);
            answer.put("length", reader.getLength());
            answer.put("closed", reader.isClosed());
            return answer;
        } finally {
            deadline.await(reader.closeAsync());
        }
    }

    /** What came back from the bookies, checked for order, summed up. */
    final class Collector {
        private final Payloads.Fingerprint fingerprint = new Payloads.Fingerprint();
        private final ArrayNode payloads;
        private long count;
        private long bytes;
        private long accumulatedLength;
        private int calls;

        Collector(boolean withPayloads) {
            payloads = withPayloads ? json.createArrayNode() : null;
        }

        long add(LedgerEntries entries, long expected) {
            long next = expected;
            for (LedgerEntry entry : entries) {
                expectId(next++, entry.getEntryId());
                byte[] payload = entry.getEntryBytes();
                fingerprint.add(payload);
                count++;
                bytes += payload.length;
                accumulatedLength = entry.getLength();
                if (payloads != null) {
                    payloads.add(Base64.getEncoder().encodeToString(payload));
                }
            }
            if (next == expected) {
                throw new IllegalStateException("a read from entry " + expected + " came back empty");
            }
            calls++;
            return next;
        }

        ObjectNode answer() {
            ObjectNode answer = json.createObjectNode();
            answer.put("count", count);
            answer.put("size_bytes", bytes);
            answer.put("calls", calls);
            answer.put("accumulated_length", accumulatedLength);
            answer.put("fingerprint", fingerprint.hex());
            if (payloads != null) {
                answer.set("payloads", payloads);
            }
            return answer;
        }
    }

    private ObjectNode metadata(ObjectNode request, Deadline deadline) throws Exception {
        LedgerMetadata metadata =
                deadline.await(client(request).getLedgerMetadata(request.get("ledger_id").asLong()));
        ObjectNode answer = json.createObjectNode();
        answer.put("ledger_id", metadata.getLedgerId());
        answer.put("state", metadata.getState().name());
        answer.put("ensemble_size", metadata.getEnsembleSize());
        answer.put("write_quorum_size", metadata.getWriteQuorumSize());
        answer.put("ack_quorum_size", metadata.getAckQuorumSize());
        answer.put("last_entry_id", metadata.getLastEntryId());
        answer.put("length", metadata.getLength());
        answer.put("digest", metadata.getDigestType().name());
        answer.put("has_password", metadata.hasPassword());
        answer.put("format_version", metadata.getMetadataFormatVersion());
        answer.put("ctime_ms", metadata.getCtime());
        ObjectNode custom = answer.putObject("custom_metadata");
        metadata.getCustomMetadata().forEach((key, value) ->
                custom.put(key, Base64.getEncoder().encodeToString(value)));
        ArrayNode segments = answer.putArray("segments");
        for (Map.Entry<Long, ? extends List<BookieId>> segment : metadata.getAllEnsembles().entrySet()) {
            ObjectNode node = segments.addObject();
            node.put("first_entry_id", segment.getKey());
            node.set("bookies", ids(segment.getValue()));
        }
        return answer;
    }

    private ObjectNode delete(ObjectNode request, Deadline deadline) throws Exception {
        deadline.await(client(request)
                .newDeleteLedgerOp()
                .withLedgerId(request.get("ledger_id").asLong())
                .execute());
        return json.createObjectNode();
    }

    BookKeeper client(ObjectNode request) throws Exception {
        Map<String, String> settings = new HashMap<>();
        request.path("settings").properties().forEach(entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        return clients.get(new Clients.Key(
                request.get("uri").asText(), request.path("wire").asInt(3), request.path("batch").asBoolean(), settings));
    }

    WriteHandle writer(ObjectNode request) {
        String name = request.get("writer").asText();
        WriteHandle writer = writers.get(name);
        if (writer == null) {
            throw new IllegalArgumentException("no open writer " + name);
        }
        return writer;
    }

    static DigestType digest(ObjectNode request) {
        return DigestType.valueOf(request.get("digest").asText());
    }

    static byte[] password(JsonNode request) {
        return request.get("password").asText().getBytes(StandardCharsets.UTF_8);
    }

    private ArrayNode ids(Collection<BookieId> bookies) {
        ArrayNode ids = json.createArrayNode();
        bookies.forEach(bookie -> ids.add(bookie.toString()));
        return ids;
    }

    /** One time limit over all the waits of a command. */
    static final class Deadline {
        private final long endNanos;

        Deadline(long timeoutMs) {
            endNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
        }

        <T> T await(CompletableFuture<T> future) throws Exception {
            try {
                return future.get(Math.max(0, endNanos - System.nanoTime()), TimeUnit.NANOSECONDS);
            } catch (TimeoutException e) {
                throw expired();
            }
        }

        void acquire(Semaphore permits, int count) throws Exception {
            if (!permits.tryAcquire(count, Math.max(0, endNanos - System.nanoTime()), TimeUnit.NANOSECONDS)) {
                throw expired();
            }
        }

        private static TimeoutException expired() {
            return new TimeoutException("no answer from Apache's client within the command's timeout");
        }
    }
}
