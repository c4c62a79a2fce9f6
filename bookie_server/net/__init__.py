"""The bookie's front ends. ``native`` speaks v2 and v3, ``grpc`` gRPC. ``common`` has what both need: limits, access,
and the entrance of new connections."""
