package org.bkspark.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.client.api.CreateAdvBuilder;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteHandle;

/** Commands on open ledgers: entries under ids of the caller's choice, {@code force}, and what a writer knows. */
final class WriterCommands {
    private final Commands commands;

    /** Additions of {@code append_adv} by writer and entry id; those that wait for lower ids stay under way. */
    private final Map<String, Map<Long, CompletableFuture<Long>>> additions = new ConcurrentHashMap<>();

    WriterCommands(Commands commands) {
        this.commands = commands;
    }

    ObjectNode run(ObjectNode request, Commands.Deadline deadline) throws Exception {
        return switch (request.get("command").asText()) {
            case "create_adv" -> createAdv(request, deadline);
            case "append_adv" -> appendAdv(request, deadline);
            case "force" -> force(request, deadline);
            case "writer_state" -> state(commands.writer(request));
            case "abandon" -> abandon(request);
            default -> throw new IllegalArgumentException("not a command on writers: " + request.get("command"));
        };
    }

    /** As {@code create}; {@code ledger_id} asks for that id. */
    private ObjectNode createAdv(ObjectNode request, Commands.Deadline deadline) throws Exception {
        CreateAdvBuilder creation = commands.creation(request).makeAdv();
        if (request.hasNonNull("ledger_id")) {
            creation.withLedgerId(request.get("ledger_id").asLong());
        }
        // What Apache's client gives is one class for both interfaces.
        return commands.added((WriteHandle) deadline.await(creation.execute()));
    }

    /** Adds {@code payloads} under {@code entry_ids}, then waits for {@code await}, ids of this call or one before. */
    private ObjectNode appendAdv(ObjectNode request, Commands.Deadline deadline) throws Exception {
        WriteHandle writer = commands.writer(request);
        Payloads payloads = new Payloads(request.get("payloads"));
        JsonNode entryIds = request.get("entry_ids");
        Map<Long, CompletableFuture<Long>> pending =
                additions.computeIfAbsent(request.get("writer").asText(), name -> new ConcurrentHashMap<>());
        for (int i = 0; i < payloads.count(); i++) {
            long entryId = entryIds.get(i).asLong();
            CompletableFuture<Long> addition = ((WriteAdvHandle) writer).writeAsync(entryId, payloads.get(i));
            CompletableFuture<Long> before = pending.putIfAbsent(entryId, addition);
            if (before != null) {
                // The second entry of an id: Apache's client refuses it at once.
                deadline.await(addition);
            }
        }
        for (JsonNode entryId : request.get("await")) {
            deadline.await(pending.get(entryId.asLong()));
        }
        return state(writer);
    }

    private ObjectNode force(ObjectNode request, Commands.Deadline deadline) throws Exception {
        WriteHandle writer = commands.writer(request);
        deadline.await(writer.force());
        return state(writer);
    }

    private ObjectNode state(WriteHandle writer) {
        ObjectNode answer = commands.json.createObjectNode();
        answer.put("last_add_confirmed", writer.getLastAddConfirmed());
        answer.put("last_add_pushed", writer.getLastAddPushed());
        answer.put("length", writer.getLength());
        answer.put("closed", writer.isClosed());
        return answer;
    }

    private ObjectNode abandon(ObjectNode request) {
        additions.remove(request.get("writer").asText());
        commands.dropped(request);
        return commands.json.createObjectNode();
    }
}
