"""Ways to take a step on a GPU, as far as a CPU can tell."""


def test_captured_steps_are_those_of_one_kernel_at_a_time(on_ranks):
    on_ranks(2, "capture.py")


def test_coarser_products_are_where_they_were_asked_for(on_ranks):
    on_ranks(1, "precision.py")
