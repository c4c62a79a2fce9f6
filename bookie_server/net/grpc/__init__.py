"""The gRPC front end, over the same bookie as the native one: for clients in any language. Messages: bookie.proto."""
