"""Gradients in fewer bytes against torch's own rounding and against all gradients there were."""

import math

import pytest
import torch

from ddp_hpc.exchange._compression import TopK, make_wire

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def decoded(wire, message, like):
    total = torch.zeros_like(like)
    wire.add_to(total, message)
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("length", [0, 1, 7, 10_001])
def test_halves_round_as_torch_does_and_take_two_bytes(name, dtype, length):
    gradients = torch.randn(length, dtype=dtype, generator=torch.Generator().manual_seed(length))
    wire = make_wire(name, gradients, kept=0.01)
    message = wire.encode(gradients)
    assert message.nbytes == wire.bytes_per_message == 2 * length
    assert torch.equal(decoded(wire, message, gradients), gradients.to(HALVES[name]).to(dtype))


def test_float16_sends_the_largest_it_has_for_more_and_infinity_for_infinity():
    gradients = torch.tensor([7e4, -1e30, 65504.0, math.inf, -math.inf, math.nan, 1e-9])
    wire = make_wire("float16", gradients, kept=0.01)
    sent = decoded(wire, wire.encode(gradients), gradients).tolist()
    assert sent[:5] == [65504.0, -65504.0, 65504.0, math.inf, -math.inf]
    assert math.isnan(sent[5])
    assert sent[6] == 0


def test_bfloat16_has_the_range_of_float32_and_saturates_for_float64():
    large = torch.tensor([1e30, 1e300], dtype=torch.float64)
    wire = make_wire("bfloat16", large, kept=0.01)
    sent = decoded(wire, wire.encode(large), large).tolist()
    assert sent[0] == pytest.approx(1e30, rel=2**-8)
    assert sent[1] == torch.finfo(torch.bfloat16).max


@pytest.mark.parametrize("name", HALVES)
def test_halves_are_summed_in_the_precision_of_the_gradients(name):
    gradients = torch.full((3,), 60000.0)
    wire, total = make_wire(name, gradients, kept=0.01), torch.zeros(3)
    message = wire.encode(gradients)
    for _ in range(3):
        wire.add_to(total, message)
    assert torch.equal(total, 3 * gradients.to(HALVES[name]).float())  # float16 itself could not hold 180,000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("length", "kept"), [(1, 0.5), (7, 0.3), (1000, 0.001), (1001, 0.25)])
def test_what_was_sent_and_what_is_kept_sum_to_all_gradients(dtype, length, kept):
    generator, steps = torch.Generator().manual_seed(1), 20
    like = torch.zeros(length, dtype=dtype)
    wire, sent, all_gradients = TopK(like, kept), torch.zeros_like(like), torch.zeros_like(like)
    for _ in range(steps):
        gradients = torch.randint(-1000, 1000, (length,), generator=generator).to(dtype)  # whole, so sums are exact
        all_gradients += gradients
        wire.add_to(sent, wire.encode(gradients))
    assert torch.equal(sent + wire.residual, all_gradients)
    assert int(wire.residual.count_nonzero()) <= length - max(1, round(kept * length))


def test_top_k_sends_the_largest_of_gradients_and_rest_together():
    gradients = torch.tensor([1.0, -3.0, 2.0, 0.5])
    wire = TopK(gradients, kept=0.25)
    sent = [decoded(wire, wire.encode(gradients), gradients).tolist() for _ in range(3)]
    assert sent == [[0, -3, 0, 0], [0, 0, 4, 0], [0, -6, 0, 0]]
    assert wire.residual.tolist() == [3, 0, 2, 1.5]


def test_a_message_of_top_k_takes_indices_and_values_only():
    assert make_wire("top_k", torch.zeros(10_000), kept=0.01).bytes_per_message == 100 * (4 + 4)
    assert make_wire("top_k", torch.zeros(10_000, dtype=torch.float64), kept=0.01).bytes_per_message == 100 * (8 + 4)
    empty = torch.zeros(0)
    wire = make_wire("top_k", empty, kept=0.01)
    message = wire.encode(empty)
    assert len(message) == 0
    wire.add_to(empty, message)


def test_top_k_lets_a_diverging_training_be_seen():
    gradients = torch.tensor([1.0, math.nan, 2.0, 3.0])
    wire = TopK(gradients, kept=0.25)
    assert decoded(wire, wire.encode(gradients), gradients).isnan().any()


def test_what_is_kept_is_state_that_is_restored_in_place():
    gradients = torch.tensor([1.0, 2.0])
    wire = TopK(gradients, kept=0.5)
    saved = [tensor.clone() for tensor in wire.state()]
    wire.encode(gradients)
    for tensor, before in zip(wire.state(), saved, strict=True):
        tensor.copy_(before)
    assert decoded(wire, wire.encode(gradients), gradients).tolist() == [0, 2]


def test_what_cannot_be_compressed_is_refused_by_name():
    with pytest.raises(ValueError, match=r"gradients in float16, expected: of float32 and float64"):
        make_wire("bfloat16", torch.zeros(3, dtype=torch.float16), kept=0.01)
