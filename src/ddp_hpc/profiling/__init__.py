"""Timers, meters, traces and provenance: what is measured beside the training."""
