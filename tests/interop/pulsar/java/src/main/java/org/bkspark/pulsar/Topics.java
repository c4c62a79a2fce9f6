package org.bkspark.pulsar;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.OffloadProcessStatus;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.ConsumerCryptoFailureAction;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.impl.BatchMessageIdImpl;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.client.impl.MessageImpl;
import org.apache.pulsar.client.impl.TopicMessageIdImpl;
import org.apache.pulsar.client.impl.TopicMessageImpl;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.TenantInfo;

/** What the client and the administrator of a broker do. */
final class Topics {
    private static final int TIMEOUT_S = 60;
    private static final int MAX_OUTSTANDING = 1000;
    private static final Map<Integer, Transaction> TRANSACTIONS = new HashMap<>();

    private final Broker broker;
    private final ObjectMapper json;

    /** A value with a schema. */
    public static class Point {
        public int x;
        public String label;
    }

    /** The same with one more field. */
    public static class WeighedPoint {
        public int x;
        public String label;
        public Double weight;
    }

    Topics(Broker broker, ObjectMapper json) {
        this.broker = broker;
        this.json = json;
    }

    void run(ObjectNode request, ObjectNode answer) throws Exception {
        String topic = request.path("topic").asText();
        switch (request.get("command").asText()) {
            case "init" -> broker.init(
                request.get("store").asText(), request.get("configuration_store").asText(), request.get("ledgers").asText());
            case "start" -> broker.start(
                request.get("store").asText(), request.get("configuration_store").asText(), request.get("settings"));
            case "stop" -> broker.stop();
            case "make_namespace" -> makeNamespace(request.get("namespace").asText());
            case "make_partitions" -> broker.admin().topics().createPartitionedTopic(topic, request.get("count").asInt());
            case "produce" -> produce(topic, request, answer);
            case "produce_points" -> producePoints(topic, request.get("count").asInt());
            case "read" -> answer.set("rows", read(topic, request.path("typed").asBoolean(), request.path("compacted").asBoolean()));
            case "compact" -> compact(topic);
            case "offload" -> offload(topic);
            case "consume" -> consume(topic, request.get("count").asInt(), answer);
            case "unload" -> broker.admin().topics().unload(topic);
            case "keep_nothing" -> broker.admin().namespaces().setRetention(
                request.get("namespace").asText(), new RetentionPolicies(0, 0));
            case "trim" -> broker.admin().topics().trimTopic(topic);
            case "delete" -> broker.admin().topics().delete(topic, true);
            case "terminate" -> broker.admin().topics().terminateTopic(topic);
            case "begin" -> TRANSACTIONS.put(request.get("transaction").asInt(), broker.client().newTransaction()
                .withTransactionTimeout(10, TimeUnit.MINUTES).build().get(TIMEOUT_S, TimeUnit.SECONDS));
            case "end" -> {
                Transaction transaction = TRANSACTIONS.remove(request.get("transaction").asInt());
                (request.get("commit").asBoolean() ? transaction.commit() : transaction.abort()).get(TIMEOUT_S, TimeUnit.SECONDS);
            }
            default -> throw new IllegalArgumentException(request.toString());
        }
    }

    /** Compacts a topic, and returns when that is done. */
    private void compact(String topic) throws Exception {
        broker.admin().topics().triggerCompaction(topic);
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_S);
        while (true) {
            LongRunningProcessStatus status = broker.admin().topics().compactionStatus(topic);
            if (status.status == LongRunningProcessStatus.Status.SUCCESS) {
                return;
            }
            if (status.status != LongRunningProcessStatus.Status.RUNNING || System.nanoTime() > end) {
                throw new IllegalStateException("compaction of " + topic + ": " + status.status + " " + status.lastError);
            }
            Thread.sleep(50);
        }
    }

    /** Moves all closed ledgers of a topic to tiered storage, and returns when that is done. */
    private void offload(String topic) throws Exception {
        broker.admin().topics().triggerOffload(topic, broker.admin().topics().getLastMessageId(topic));
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(TIMEOUT_S);
        while (true) {
            OffloadProcessStatus status = broker.admin().topics().offloadStatus(topic);
            if (status.getStatus() == LongRunningProcessStatus.Status.SUCCESS) {
                return;
            }
            if (status.getStatus() != LongRunningProcessStatus.Status.RUNNING || System.nanoTime() > end) {
                throw new IllegalStateException("offload of " + topic + ": " + status.getStatus() + " " + status.getLastError());
            }
            Thread.sleep(50);
        }
    }

    private void makeNamespace(String namespace) throws Exception {
        String tenant = namespace.substring(0, namespace.indexOf('/'));
        if (!broker.admin().tenants().getTenants().contains(tenant)) {
            broker.admin().tenants().createTenant(tenant, TenantInfo.builder().allowedClusters(Set.of(Broker.CLUSTER)).build());
        }
        broker.admin().namespaces().createNamespace(namespace, Set.of(Broker.CLUSTER));
    }

    /** Sends {@code messages}, each {value, key, key_bytes, ordering_key, properties, event_time, deliver_at, transaction}; or {@code count} numbered ones. */
    private void produce(String topic, ObjectNode request, ObjectNode answer) throws Exception {
        ProducerBuilder<byte[]> builder = broker.client().newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS)
            .producerName(request.path("producer").asText("producer-" + System.nanoTime()))
            .compressionType(CompressionType.valueOf(request.path("compression").asText("NONE")))
            .loadConf(Map.of("compressMinMsgBodySize", 0))
            .blockIfQueueFull(true).maxPendingMessages(MAX_OUTSTANDING);
        int batch = request.path("batch").asInt(0);
        if (batch > 0) {
            builder.enableBatching(true).batchingMaxMessages(batch).batchingMaxBytes(4 << 20).batchingMaxPublishDelay(1, TimeUnit.HOURS);
        } else {
            builder.enableBatching(false);
        }
        if (request.has("chunk_bytes")) {
            builder.enableChunking(true).chunkMaxMessageSize(request.get("chunk_bytes").asInt());
        }
        if (request.has("encryption_key")) {
            builder.addEncryptionKey("key").cryptoKeyReader(new FixedKey(request.get("encryption_key").asText()));
        }
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        try (Producer<byte[]> producer = builder.create()) {
            for (JsonNode one : request.path("messages")) {
                CompletableFuture<MessageId> future = message(producer, one).sendAsync();
                sent.add(future);
                if (one.has("transaction") && batch == 0) {
                    // The coordinator is told of the topic first, and another message could overtake this one.
                    future.get(TIMEOUT_S, TimeUnit.SECONDS);
                }
            }
            int first = request.path("first").asInt(), size = request.path("value_bytes").asInt(0);
            Random random = new Random(first);
            for (int i = first; i < first + request.path("count").asInt(0); i++) {
                sent.add(producer.newMessage().key("k" + i % 7).value(numbered(i, size, random)).sendAsync());
                if (sent.size() >= MAX_OUTSTANDING && batch > 0) {
                    producer.flush();
                    sent.clear();
                }
            }
            producer.flush();
            for (CompletableFuture<MessageId> one : sent) {
                one.get(TIMEOUT_S, TimeUnit.SECONDS);
            }
        }
        answer.put("sent", sent.size());
    }

    private static byte[] numbered(int number, int size, Random random) {
        byte[] text = String.format("%08d", number).getBytes(StandardCharsets.US_ASCII);
        if (size <= text.length) {
            return text;
        }
        byte[] value = new byte[size];
        random.nextBytes(value);
        System.arraycopy(text, 0, value, 0, text.length);
        return value;
    }

    private TypedMessageBuilder<byte[]> message(Producer<byte[]> producer, JsonNode one) {
        TypedMessageBuilder<byte[]> message = one.has("transaction")
            ? producer.newMessage(TRANSACTIONS.get(one.get("transaction").asInt())) : producer.newMessage();
        message.value(one.path("value").isTextual() ? Base64.getDecoder().decode(one.get("value").asText()) : null);
        if (one.has("key")) {
            message.key(one.get("key").asText());
        }
        if (one.has("key_bytes")) {
            message.keyBytes(Base64.getDecoder().decode(one.get("key_bytes").asText()));
        }
        if (one.has("event_time")) {
            message.eventTime(one.get("event_time").asLong());
        }
        if (one.has("ordering_key")) {
            message.orderingKey(Base64.getDecoder().decode(one.get("ordering_key").asText()));
        }
        if (one.has("deliver_at")) {
            message.deliverAt(one.get("deliver_at").asLong());
        }
        one.path("properties").fields().forEachRemaining(pair -> message.property(pair.getKey(), pair.getValue().asText()));
        return message;
    }

    /** Two versions of an Avro schema, in one topic. */
    private void producePoints(String topic, int count) throws Exception {
        try (Producer<Point> producer = broker.client().newProducer(Schema.AVRO(Point.class)).topic(topic).create()) {
            for (int i = 0; i < count; i++) {
                Point point = new Point();
                point.x = i;
                point.label = i % 3 == 0 ? null : "point " + i;
                producer.sendAsync(point);
            }
            producer.flush();
        }
        try (Producer<WeighedPoint> producer = broker.client().newProducer(Schema.AVRO(WeighedPoint.class)).topic(topic).create()) {
            for (int i = 0; i < count; i++) {
                WeighedPoint point = new WeighedPoint();
                point.x = -i;
                point.label = "weighed " + i;
                point.weight = i / 4.0;
                producer.sendAsync(point);
            }
            producer.flush();
        }
    }

    /** Everything that a reader gets now. */
    private ArrayNode read(String topic, boolean typed, boolean compacted) throws Exception {
        ArrayNode rows = json.createArrayNode();
        Schema<?> schema = typed ? Schema.AUTO_CONSUME() : Schema.BYTES;
        try (Reader<?> reader = broker.client().newReader(schema).topic(topic).startMessageId(MessageId.earliest)
                .readCompacted(compacted).cryptoFailureAction(ConsumerCryptoFailureAction.CONSUME).create()) {
            while (reader.hasMessageAvailable()) {
                Message<?> message = reader.readNext(TIMEOUT_S, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException("no message came");
                }
                rows.add(row(message, typed));
            }
        }
        return rows;
    }

    private ObjectNode row(Message<?> message, boolean typed) {
        ObjectNode row = json.createObjectNode();
        MessageId given = message.getMessageId();
        MessageIdImpl id = (MessageIdImpl) (given instanceof TopicMessageIdImpl of ? of.getInnerMessageId() : given);
        row.put("topic", message.getTopicName());
        row.put("ledger", id.getLedgerId()).put("entry", id.getEntryId()).put("partition", id.getPartitionIndex());
        row.put("batch_index", id instanceof BatchMessageIdImpl batch ? batch.getBatchIndex() : -1);
        row.put("message_id", base64(id.toByteArray()));
        row.put("key", message.hasKey() ? base64(message.getKeyBytes()) : null);
        row.put("value", base64(message.getData()));
        row.put("ordering_key", message.hasOrderingKey() ? base64(message.getOrderingKey()) : null);
        MessageImpl<?> whole = (MessageImpl<?>) (message instanceof TopicMessageImpl<?> of ? of.getMessage() : message);
        row.put("deliver_at", whole.getMessageBuilder().hasDeliverAtTime() ? whole.getMessageBuilder().getDeliverAtTime() : -1);
        row.set("properties", json.valueToTree(message.getProperties()));
        row.put("publish_time", message.getPublishTime()).put("event_time", message.getEventTime());
        row.put("sequence_id", message.getSequenceId()).put("producer", message.getProducerName());
        if (typed && message.getValue() instanceof GenericRecord record) {
            row.put("decoded", String.valueOf(record.getNativeObject()));
        }
        return row;
    }

    private static String base64(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    /** Reads {@code count} messages as fast as a reader can, and says how long that took. */
    private void consume(String topic, int count, ObjectNode answer) throws Exception {
        var os = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long cpu = os.getProcessCpuTime(), start = System.nanoTime(), bytes = 0;
        try (Reader<byte[]> reader = broker.client().newReader().topic(topic).startMessageId(MessageId.earliest)
                .receiverQueueSize(10_000).create()) {
            for (int i = 0; i < count; i++) {
                Message<byte[]> message = reader.readNext(TIMEOUT_S, TimeUnit.SECONDS);
                bytes += message.size();
            }
        }
        answer.put("elapsed_s", (System.nanoTime() - start) / 1e9).put("bytes", bytes);
        answer.put("cpu_s", (os.getProcessCpuTime() - cpu) / 1e9);
    }
}
