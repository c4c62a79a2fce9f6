package org.bkspark.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.pulsar.PulsarClusterMetadataSetup;
import org.apache.pulsar.broker.PulsarServerException;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.common.configuration.PulsarConfigurationLoader;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/** A broker in this process, as {@code bin/pulsar broker} starts it, and a client and an administrator of it. */
final class Broker {
    static final String CLUSTER = "interop";

    private PulsarService service;
    private PulsarClient client;
    private PulsarAdmin admin;

    /** Writes the metadata of a new cluster beside the ledgers that are there, or, with {@code ledgers}, elsewhere. */
    void init(String store, String configurationStore, String ledgers) throws Exception {
        List<String> arguments = new ArrayList<>(List.of(
            "--cluster", CLUSTER, "--metadata-store", "zk:" + store, "--configuration-metadata-store", "zk:" + configurationStore,
            "--web-service-url", "http://127.0.0.1:1", "--broker-service-url", "pulsar://127.0.0.1:1",
            "--initial-num-transaction-coordinators", "1", "--initial-num-stream-storage-containers", "0",
            "--default-namespace-bundle-number", "1"));
        if (!ledgers.isEmpty()) {
            arguments.addAll(List.of("--existing-bk-metadata-service-uri", ledgers));
        }
        PulsarClusterMetadataSetup.main(arguments.toArray(new String[0]));
    }

    void start(String store, String configurationStore, JsonNode settings) throws Exception {
        Properties values = new Properties();
        values.setProperty("metadataStoreUrl", "zk:" + store);
        values.setProperty("configurationMetadataStoreUrl", "zk:" + configurationStore);
        values.setProperty("clusterName", CLUSTER);
        settings.fields().forEachRemaining(one -> values.setProperty(one.getKey(), one.getValue().asText()));
        ServiceConfiguration configuration = PulsarConfigurationLoader.create(values, ServiceConfiguration.class);
        service = new PulsarService(configuration) {
            @Override
            public LedgerOffloader createManagedLedgerOffloader(OffloadPoliciesImpl policies) throws PulsarServerException {
                String directory = policies == null ? null : policies.getFileSystemURI();
                return directory == null || directory.isEmpty()
                    ? super.createManagedLedgerOffloader(policies) : new DirectoryOffloader(Path.of(directory), policies);
            }
        };
        service.start();
    }

    /** Stops the broker in order: it closes its ledgers. */
    void stop() throws Exception {
        disconnect();
        service.close();
        service = null;
    }

    PulsarClient client() throws Exception {
        if (client == null) {
            client = PulsarClient.builder().serviceUrl(service.getBrokerServiceUrl()).enableTransaction(
                service.getConfiguration().isTransactionCoordinatorEnabled()).operationTimeout(60, TimeUnit.SECONDS).build();
        }
        return client;
    }

    PulsarAdmin admin() throws Exception {
        if (admin == null) {
            admin = PulsarAdmin.builder().serviceHttpUrl(service.getWebServiceAddress()).build();
        }
        return admin;
    }

    private void disconnect() throws Exception {
        if (client != null) {
            client.close();
        }
        if (admin != null) {
            admin.close();
        }
        client = null;
        admin = null;
    }
}
