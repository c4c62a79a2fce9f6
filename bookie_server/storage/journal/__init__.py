"""Journals: layout, group commit, reading back, replay, marks. Only storage comes in here."""
