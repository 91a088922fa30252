"""Datasets: one dataset, one file."""
