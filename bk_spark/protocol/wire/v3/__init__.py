"""Wire protocol v3: protobuf messages, one by one, and runs of them at once. Enter at :mod:`wire_v3` for single ones.

Connections with v3 come in, on both sides, and frames that exist in both protocols.
"""
