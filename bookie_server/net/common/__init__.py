"""Limits that hold for every front end: connections, memory of frames, fair turns. Front ends come in here."""
