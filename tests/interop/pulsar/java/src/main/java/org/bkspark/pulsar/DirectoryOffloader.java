package org.bkspark.pulsar;

import io.netty.buffer.Unpooled;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.impl.LedgerEntriesImpl;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.pulsar.common.policies.data.OffloadPolicies;

/**
 * Tiered storage in a directory: a file for each ledger. Pulsar's own offloaders are not in Maven Central. The broker decides what is
 * moved and deleted, and records it, as it does with them.
 */
final class DirectoryOffloader implements LedgerOffloader {
    private static final Map<UUID, LedgerMetadata> METADATA = new ConcurrentHashMap<>();

    private final Path directory;
    private final OffloadPolicies policies;

    DirectoryOffloader(Path directory, OffloadPolicies policies) {
        this.directory = directory;
        this.policies = policies;
    }

    @Override
    public String getOffloadDriverName() {
        return "filesystem";
    }

    @Override
    public Map<String, String> getOffloadDriverMetadata() {
        return Map.of("bucket", directory.getFileName().toString(), "secret", "not to be shown");
    }

    @Override
    public CompletableFuture<Void> offload(ReadHandle ledger, UUID id, Map<String, String> more) {
        return CompletableFuture.runAsync(() -> {
            try (LedgerEntries entries = ledger.read(0, ledger.getLastAddConfirmed());
                    DataOutputStream out = new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(file(id))))) {
                for (LedgerEntry entry : entries) {
                    byte[] content = entry.getEntryBytes();
                    out.writeInt(content.length);
                    out.write(content);
                }
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
            METADATA.put(id, ledger.getLedgerMetadata());
        });
    }

    @Override
    public CompletableFuture<ReadHandle> readOffloaded(long ledgerId, UUID id, Map<String, String> properties) {
        return CompletableFuture.supplyAsync(() -> {
            List<byte[]> entries = new ArrayList<>();
            try (DataInputStream in = new DataInputStream(new BufferedInputStream(Files.newInputStream(file(id))))) {
                while (in.available() > 0) {
                    entries.add(in.readNBytes(in.readInt()));
                }
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            return new StoredLedger(ledgerId, METADATA.get(id), entries);
        });
    }

    @Override
    public CompletableFuture<Void> deleteOffloaded(long ledgerId, UUID id, Map<String, String> properties) {
        return CompletableFuture.runAsync(() -> {
            try {
                Files.deleteIfExists(file(id));
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        });
    }

    @Override
    public OffloadPolicies getOffloadPolicies() {
        return policies;
    }

    @Override
    public void close() {}

    private Path file(UUID id) {
        return directory.resolve(id.toString());
    }

    /** A ledger as the broker reads it back. */
    private record StoredLedger(long id, LedgerMetadata metadata, List<byte[]> entries) implements ReadHandle {
        @Override
        public long getId() {
            return id;
        }

        @Override
        public LedgerMetadata getLedgerMetadata() {
            return metadata;
        }

        @Override
        public CompletableFuture<Void> closeAsync() {
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public CompletableFuture<LedgerEntries> readAsync(long first, long last) {
            List<LedgerEntry> found = new ArrayList<>();
            for (long number = first; number <= last; number++) {
                byte[] content = entries.get((int) number);
                found.add(LedgerEntryImpl.create(id, number, content.length, Unpooled.wrappedBuffer(content)));
            }
            return CompletableFuture.completedFuture(LedgerEntriesImpl.create(found));
        }

        @Override
        public CompletableFuture<LedgerEntries> readUnconfirmedAsync(long first, long last) {
            return readAsync(first, last);
        }

        @Override
        public CompletableFuture<Long> readLastAddConfirmedAsync() {
            return CompletableFuture.completedFuture(getLastAddConfirmed());
        }

        @Override
        public CompletableFuture<Long> tryReadLastAddConfirmedAsync() {
            return readLastAddConfirmedAsync();
        }

        @Override
        public long getLastAddConfirmed() {
            return entries.size() - 1L;
        }

        @Override
        public long getLength() {
            return metadata.getLength();
        }

        @Override
        public boolean isClosed() {
            return true;
        }

        @Override
        public CompletableFuture<LastConfirmedAndEntry> readLastAddConfirmedAndEntryAsync(long entry, long timeout, boolean parallel) {
            return CompletableFuture.failedFuture(new UnsupportedOperationException());
        }
    }
}
