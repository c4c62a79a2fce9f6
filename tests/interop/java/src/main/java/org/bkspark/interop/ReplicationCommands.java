package org.bkspark.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.net.URI;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.meta.LedgerAuditorManager;
import org.apache.bookkeeper.meta.LedgerManagerFactory;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;
import org.apache.bookkeeper.meta.MetadataBookieDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.meta.UnderreplicatedLedger;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.zookeeper.KeeperException;

/**
 * What Apache's auditor and replication worker do with ZooKeeper, call by call.
 *
 * <p>{@code session} names a session with ZooKeeper, which is opened at its first use and ended by
 * {@code replication_end}. {@code call} is the method.
 */
final class ReplicationCommands implements AutoCloseable {
    /** A session, and Apache's managers of marks and votes in it. */
    private record Session(
            MetadataBookieDriver driver, LedgerUnderreplicationManager marks, LedgerAuditorManager election) {}

    private final ObjectMapper json;
    private final Map<String, Session> sessions = new ConcurrentHashMap<>();

    ReplicationCommands(ObjectMapper json) {
        this.json = json;
    }

    ObjectNode run(ObjectNode request) throws Exception {
        String name = request.get("session").asText();
        if (request.get("command").asText().equals("replication_end")) {
            end(sessions.remove(name));
            return json.createObjectNode();
        }
        Session session = sessions.get(name);
        if (session == null) {
            session = open(request.get("uri").asText());
            sessions.put(name, session);
        }
        return call(session, request);
    }

    @Override
    public void close() {
        // The process is about to end, and its sessions with it.
        sessions.clear();
    }

    private static Session open(String uri) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri(uri);
        MetadataBookieDriver driver = MetadataDrivers.getBookieDriver(URI.create(uri));
        driver.initialize(conf, NullStatsLogger.INSTANCE);
        LedgerManagerFactory factory = driver.getLedgerManagerFactory();
        return new Session(driver, factory.newLedgerUnderreplicationManager(), factory.newLedgerAuditorManager());
    }

    private static void end(Session session) throws Exception {
        session.election().close();
        session.marks().close();
        session.driver().close();
    }

    private ObjectNode call(Session session, ObjectNode request) throws Exception {
        LedgerUnderreplicationManager marks = session.marks();
        long ledgerId = request.path("ledger_id").asLong(-1);
        long value = request.path("value").asLong();
        ObjectNode answer = json.createObjectNode();
        switch (request.get("call").asText()) {
            case "mark" -> marks.markLedgerUnderreplicatedAsync(ledgerId, texts(request.get("missing"))).get();
            case "poll" -> answer.put("ledger_id", marks.pollLedgerToRereplicate());
            case "acquire" -> answer.put("taken", acquire(marks, ledgerId));
            case "release" -> marks.releaseUnderreplicatedLedger(ledgerId);
            case "finish" -> marks.markLedgerReplicated(ledgerId);
            case "holder" -> answer.put("holder", marks.getReplicationWorkerIdRereplicatingLedger(ledgerId));
            case "list" -> answer.set("ledgers", list(marks));
            case "disable" -> marks.disableLedgerReplication();
            case "enable" -> marks.enableLedgerReplication();
            case "is_enabled" -> answer.put("enabled", marks.isLedgerReplicationEnabled());
            case "init_delay" -> answer.put("set", marks.initializeLostBookieRecoveryDelay((int) value));
            case "set_delay" -> marks.setLostBookieRecoveryDelay((int) value);
            case "delay" -> answer.put("seconds", marks.getLostBookieRecoveryDelay());
            case "set_check_times" -> {
                marks.setCheckAllLedgersCTime(value);
                marks.setPlacementPolicyCheckCTime(value + 1);
                marks.setReplicasCheckCTime(value + 2);
            }
            case "check_times" -> answer.putArray("times")
                    .add(marks.getCheckAllLedgersCTime())
                    .add(marks.getPlacementPolicyCheckCTime())
                    .add(marks.getReplicasCheckCTime());
            // Returns when it is elected.
            case "become_auditor" -> session.election().tryToBecomeAuditor(request.get("bookie").asText(), event -> {});
            case "auditor" -> {
                BookieId auditor = session.election().getCurrentAuditor();
                answer.put("bookie", auditor == null ? null : auditor.toString());
            }
            default -> throw new IllegalArgumentException("unknown call " + request.get("call"));
        }
        return answer;
    }

    private static boolean acquire(LedgerUnderreplicationManager marks, long ledgerId) throws Exception {
        try {
            marks.acquireUnderreplicatedLedger(ledgerId);
            return true;
        } catch (Exception e) {
            for (Throwable cause = e; cause != null; cause = cause.getCause()) {
                if (cause instanceof KeeperException.NodeExistsException) {
                    return false;
                }
            }
            throw e;
        }
    }

    private ArrayNode list(LedgerUnderreplicationManager marks) {
        ArrayNode listed = json.createArrayNode();
        for (Iterator<UnderreplicatedLedger> all = marks.listLedgersToRereplicate(null); all.hasNext(); ) {
            UnderreplicatedLedger one = all.next();
            ObjectNode node = listed.addObject().put("ledger_id", one.getLedgerId()).put("ctime_ms", one.getCtime());
            ArrayNode missing = node.putArray("missing");
            one.getReplicaList().forEach(missing::add);
        }
        return listed;
    }

    private static List<String> texts(JsonNode array) {
        List<String> texts = new ArrayList<>();
        array.forEach(text -> texts.add(text.asText()));
        return texts;
    }
}
