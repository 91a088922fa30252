"""Timers, meters and provenance."""
