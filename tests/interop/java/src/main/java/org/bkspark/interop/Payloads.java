package org.bkspark.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Base64;
import java.util.HexFormat;

/**
 * Payloads of entries, given in base64 or made from a seed; the Python side makes and checks the same.
 *
 * <p>Payload {@code i} of seed {@code s} is SHA-256 of the text {@code s:i}, repeated and cut to its size. A
 * fingerprint is SHA-256 over, for each payload, its length (4 bytes, big-endian) and its bytes.
 */
final class Payloads {
    private final JsonNode sizes;
    private final JsonNode base64;
    private final long seed;

    /** @param spec {@code {"base64": [...]}} or {@code {"seed": s, "sizes": [...]}} */
    Payloads(JsonNode spec) {
        base64 = spec.get("base64");
        sizes = spec.get("sizes");
        seed = spec.path("seed").asLong();
        if ((base64 == null) == (sizes == null)) {
            throw new IllegalArgumentException("payloads need either base64 or seed and sizes");
        }
    }

    int count() {
        return base64 != null ? base64.size() : sizes.size();
    }

    byte[] get(int index) {
        if (base64 != null) {
            return Base64.getDecoder().decode(base64.get(index).asText());
        }
        byte[] block = sha256().digest((seed + ":" + index).getBytes(StandardCharsets.US_ASCII));
        byte[] payload = new byte[sizes.get(index).asInt()];
        for (int at = 0; at < payload.length; at += block.length) {
            System.arraycopy(block, 0, payload, at, Math.min(block.length, payload.length - at));
        }
        return payload;
    }

    static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Collects a fingerprint payload by payload. */
    static final class Fingerprint {
        private final MessageDigest digest = sha256();

        void add(byte[] payload) {
            digest.update(ByteBuffer.allocate(4).putInt(payload.length).flip());
            digest.update(payload);
        }

        String hex() {
            return HexFormat.of().formatHex(digest.digest());
        }
    }
}
