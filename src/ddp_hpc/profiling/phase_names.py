"""The names of the phases of a training step, and of what else is measured in it."""

# in the order in which they happen; they sum to the step: `rest_s` is what none of the others covers
PHASES = ("data_s", "h2d_s", "forward_s", "backward_s", "exchange_exposed_s", "update_s", "rest_s")

# parts of exchange_exposed_s, where an exchange tells them apart: at a parameter server
PARTS = ("gather_s", "average_s", "distribute_s")
