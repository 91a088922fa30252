"""Ways to exchange gradients: one strategy, one file."""
