package org.bkspark.pulsar;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;

/** Gives producers one public key, in PEM. Nobody has the private one. */
final class FixedKey implements CryptoKeyReader {
    private static final long serialVersionUID = 1L;

    private final String pem;

    FixedKey(String pem) {
        this.pem = pem;
    }

    @Override
    public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
        return new EncryptionKeyInfo(pem.getBytes(StandardCharsets.US_ASCII), Map.of());
    }

    @Override
    public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
        throw new UnsupportedOperationException(name);
    }
}
