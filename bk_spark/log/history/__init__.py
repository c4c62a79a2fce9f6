"""Earlier states of a log: its commits (``commits``), and which of them a read means (``states``). No I/O."""
