"""One model, one file; and the replica, its flat weights and gradients."""
