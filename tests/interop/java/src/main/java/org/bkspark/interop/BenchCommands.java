package org.bkspark.interop;

import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.management.OperatingSystemMXBean;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Base64;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;

/**
 * The loops of {@code benchmarks/ledger.py} with Apache's client: timed here, so that nothing of the harness is
 * in the figures, and checked. Entry {@code i} of a ledger has payload {@code i} modulo their number.
 *
 * <p>Fields of both: {@code in_flight}, {@code max_count} and {@code max_seconds} (whichever comes first ends the
 * loop). Answers have {@code count}, {@code seconds} from the first request to the last answer, {@code cpu_seconds}
 * of this process in that time, and {@code latencies_us}: big-endian 32-bit integers, in base64.
 */
final class BenchCommands {
    /** Every so many entries that are read, one is compared with what was written. */
    private static final int SAMPLE_EVERY = 64;

    private final Commands commands;
    private final OperatingSystemMXBean process =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    BenchCommands(Commands commands) {
        this.commands = commands;
    }

    ObjectNode run(ObjectNode request, Commands.Deadline deadline) throws Exception {
        return switch (request.get("command").asText()) {
            case "bench_write" -> write(request, deadline);
            case "bench_read" -> read(request, deadline);
            default -> throw new IllegalArgumentException("not a command of the benchmark: " + request.get("command"));
        };
    }

    /**
     * Writes a new ledger and closes it. The latency of an add is from the call to its completion. With
     * {@code rate_per_second} adds go out evenly so often, and a latency is from when its add was due.
     */
    private ObjectNode write(ObjectNode request, Commands.Deadline deadline) throws Exception {
        byte[][] payloads = payloads(request);
        int inFlight = request.get("in_flight").asInt();
        int maxCount = request.get("max_count").asInt();
        double rate = request.path("rate_per_second").asDouble(0);
        WriteHandle writer = deadline.await(commands.creation(request).execute());
        int[] latencies = new int[maxCount];
        Semaphore permits = new Semaphore(inFlight);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Clock clock = new Clock(request);
        int count = 0;
        while (count < maxCount && !clock.isOver() && failure.get() == null) {
            deadline.acquire(permits, 1);
            int index = count++;
            long sent = rate > 0 ? clock.waitUntil(index / rate) : System.nanoTime();
            writer.appendAsync(payloads[index % payloads.length]).whenComplete((entryId, error) -> {
                latencies[index] = micros(System.nanoTime() - sent);
                if (error != null) {
                    failure.compareAndSet(null, error);
                } else if (entryId != index) {
                    failure.compareAndSet(null, new IllegalStateException("add " + index + " became entry " + entryId));
                }
                permits.release();
            });
        }
        deadline.acquire(permits, inFlight);
        ObjectNode answer = clock.answer(count, latencies);
        if (failure.get() != null) {
            throw new CompletionException(failure.get());
        }
        deadline.await(writer.closeAsync());
        answer.put("ledger_id", writer.getId());
        answer.put("last_entry_id", writer.getLedgerMetadata().getLastEntryId());
        answer.put("length", writer.getLedgerMetadata().getLength());
        return answer;
    }

    /**
     * Reads a closed ledger from its first entry on, and again from there at its end. {@code entries_per_call} 1 with
     * {@code in_flight} 1 is one read after the other, with their latencies; else {@code in_flight} entries are asked
     * for ahead, by calls of so many, as batch reads with {@code batch}. {@code first_entry_id} (default 0) is where it
     * begins at first.
     */
    private ObjectNode read(ObjectNode request, Commands.Deadline deadline) throws Exception {
        byte[][] payloads = payloads(request);
        int inFlight = request.get("in_flight").asInt();
        int perCall = request.get("entries_per_call").asInt();
        int maxCount = request.get("max_count").asInt();
        boolean batch = request.path("batch").asBoolean();
        int[] latencies = new int[inFlight == 1 ? maxCount : 0];
        ReadHandle reader = deadline.await(commands.client(request)
                .newOpenLedgerOp()
                .withLedgerId(request.get("ledger_id").asLong())
                .withDigestType(Commands.digest(request))
                .withPassword(Commands.password(request))
                .execute());
        try {
            long entries = reader.getLastAddConfirmed() + 1;
            Reads reads = new Reads(reader, payloads, batch);
            ArrayDeque<Call> calls = new ArrayDeque<>();
            Clock clock = new Clock(request);
            long next = request.path("first_entry_id").asLong(0);
            int asked = 0;
            while (true) {
                while (asked < maxCount && !clock.isOver() && asked - reads.count < inFlight) {
                    int size = (int) Math.min(perCall, Math.min(entries - next, maxCount - asked));
                    calls.add(new Call(next, size, System.nanoTime(), reads.ask(next, size)));
                    asked += size;
                    next = (next + size) % entries;
                }
                Call call = calls.poll();
                if (call == null) {
                    break;
                }
                int got = reads.take(call.first, call.count, deadline.await(call.future));
                if (inFlight == 1) {
                    latencies[reads.count - 1] = micros(System.nanoTime() - call.sentNanos);
                }
                while (got < call.count) {
                    // A batch read may give less than it was asked for.
                    long rest = call.first + got;
                    got += reads.take(rest, call.count - got, deadline.await(reads.ask(rest, call.count - got)));
                }
            }
            return clock.answer(reads.count, latencies).put("length", reads.bytes).put("entries", entries);
        } finally {
            deadline.await(reader.closeAsync());
        }
    }

    private record Call(long first, int count, long sentNanos, CompletableFuture<LedgerEntries> future) {}

    /** Asks and checks. */
    private static final class Reads {
        private final ReadHandle reader;
        private final ByteBuf[] payloads;
        private final boolean batch;
        private int count;
        private long bytes;

        Reads(ReadHandle reader, byte[][] payloads, boolean batch) {
            this.reader = reader;
            this.payloads = Arrays.stream(payloads).map(Unpooled::wrappedBuffer).toArray(ByteBuf[]::new);
            this.batch = batch;
        }

        CompletableFuture<LedgerEntries> ask(long first, int size) {
            return batch ? reader.batchReadAsync(first, size, Integer.MAX_VALUE) : reader.readAsync(first, first + size - 1);
        }

        int take(long first, int atMost, LedgerEntries entries) {
            try (entries) {
                int got = 0;
                for (LedgerEntry entry : entries) {
                    Commands.expectId(first + got++, entry.getEntryId());
                    ByteBuf payload = entry.getEntryBuffer();
                    bytes += payload.readableBytes();
                    if (count++ % SAMPLE_EVERY == 0
                            && !payload.equals(payloads[(int) (entry.getEntryId() % payloads.length)])) {
                        throw new IllegalStateException("entry " + entry.getEntryId() + " is not what was written");
                    }
                }
                if (got == 0 || got > atMost) {
                    throw new IllegalStateException(got + " entries where 1 to " + atMost + " were due");
                }
                return got;
            }
        }
    }

    /** Times one loop. */
    private final class Clock {
        private final long limitNanos;
        private final long cpuNanos = process.getProcessCpuTime();
        private final long startNanos = System.nanoTime();

        Clock(ObjectNode request) {
            limitNanos = (long) (request.get("max_seconds").asDouble() * 1e9);
        }

        boolean isOver() {
            return System.nanoTime() - startNanos > limitNanos;
        }

        /** Returns the moment so many seconds after the start, once it has come. */
        long waitUntil(double seconds) {
            long due = startNanos + (long) (seconds * 1e9);
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            return due;
        }

        ObjectNode answer(int count, int[] latencies) {
            long nanos = System.nanoTime() - startNanos;
            long cpu = process.getProcessCpuTime() - cpuNanos;
            int known = Math.min(count, latencies.length);
            ByteBuffer packed = ByteBuffer.allocate(Integer.BYTES * known);
            packed.asIntBuffer().put(latencies, 0, known);
            ObjectNode answer = commands.json.createObjectNode();
            answer.put("count", count);
            answer.put("seconds", nanos / 1e9);
            answer.put("cpu_seconds", cpu / 1e9);
            answer.put("latencies_us", Base64.getEncoder().encodeToString(packed.array()));
            return answer;
        }
    }

    private static byte[][] payloads(ObjectNode request) {
        Payloads made = new Payloads(request.get("payloads"));
        byte[][] payloads = new byte[made.count()][];
        for (int i = 0; i < payloads.length; i++) {
            payloads[i] = made.get(i);
        }
        return payloads;
    }

    private static int micros(long nanos) {
        return (int) Math.min(Integer.MAX_VALUE, nanos / 1000);
    }
}
