"""Who calls over gRPC, and whether a call is obeyed: certificates, logins, sessions. The server wires them."""
