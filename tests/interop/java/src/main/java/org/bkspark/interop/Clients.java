package org.bkspark.interop;

import java.util.HashMap;
import java.util.Map;
import javax.security.auth.login.Configuration;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Apache clients, one for each cluster and set of options, kept until told otherwise. */
final class Clients implements AutoCloseable {
    /**
     * What makes two clients differ here. {@code batch}: batch reads are sent to the bookies (v2 only).
     * {@code settings}: further keys of the client's configuration.
     */
    record Key(String metadataServiceUri, int wireVersion, boolean batch, Map<String, String> settings) {
        Key(String metadataServiceUri, int wireVersion, boolean batch) {
            this(metadataServiceUri, wireVersion, batch, Map.of());
        }
    }

    /** Apache's are 5 s, 5 s and 10 s, which a busy machine can need: limits of tests are for what never happens. */
    private static final int TIMEOUT_S = 60;

    private static final String JAAS = "java.security.auth.login.config";

    private final Map<Key, BookKeeper> clients = new HashMap<>();

    synchronized BookKeeper get(Key key) throws Exception {
        BookKeeper client = clients.get(key);
        if (client == null) {
            client = build(key);
            clients.put(key, client);
        }
        return client;
    }

    /** The users and passwords of SASL are where a property of the process says, while a client is made. */
    private static BookKeeper build(Key key) throws Exception {
        String jaas = key.settings().get(JAAS);
        if (jaas == null) {
            return BookKeeper.forConfig(configuration(key)).build();
        }
        System.setProperty(JAAS, jaas);
        Configuration.setConfiguration(null);
        try {
            return BookKeeper.forConfig(configuration(key)).build();
        } finally {
            System.clearProperty(JAAS);
            Configuration.setConfiguration(null);
        }
    }

    /** Closes the clients of one cluster, so that none goes on looking for a cluster that is gone. */
    synchronized int forget(String metadataServiceUri) throws Exception {
        int closed = 0;
        for (Key key : clients.keySet().stream().filter(k -> k.metadataServiceUri().equals(metadataServiceUri)).toList()) {
            clients.remove(key).close();
            closed++;
        }
        return closed;
    }

    @Override
    public synchronized void close() {
        // The process is about to end: nothing to save, and a client whose cluster is gone may block in close().
        clients.clear();
    }

    static ClientConfiguration configuration(Key key) {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(key.metadataServiceUri());
        conf.setUseV2WireProtocol(switch (key.wireVersion()) {
            case 2 -> true;
            case 3 -> false;
            default -> throw new IllegalArgumentException("wire must be 2 or 3, not " + key.wireVersion());
        });
        // With the default of 5000 the client stops at 5000 adds a second.
        conf.setThrottleValue(0);
        // A batch read over v3 never ends in 4.18.0.
        conf.setBatchReadEnabled(key.batch() && key.wireVersion() == 2);
        conf.setAddEntryTimeout(TIMEOUT_S);
        conf.setReadEntryTimeout(TIMEOUT_S);
        conf.setZkTimeout(TIMEOUT_S * 1000);
        conf.setNumIOThreads(2);
        conf.setNumWorkerThreads(2);
        key.settings().forEach(conf::setProperty);
        return conf;
    }
}
