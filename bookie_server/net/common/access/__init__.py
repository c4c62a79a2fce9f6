"""Who may use the bookie, whatever the front end: who a peer is, and what its names may do."""
