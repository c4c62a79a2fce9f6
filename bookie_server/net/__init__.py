"""The bookie's front ends. ``common`` bounds what peers can make it hold; ``native`` speaks v2 and v3."""
