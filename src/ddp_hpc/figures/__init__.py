"""Figures: one figure, one file."""
