"""`ddp-hpc bench realign`: each way of a layer gives the same, and is timed beside the others in a round."""

import pyarrow.parquet as pq
import pytest
import torch

from ddp_hpc.bench import folded_bias


@pytest.mark.parametrize("way", folded_bias.WAYS)
@pytest.mark.parametrize("shape", [folded_bias.Shape(7, 5, 3), folded_bias.Shape(1, 1, 1), folded_bias.Shape(30, 2, 9)])
def test_each_way_of_a_layer_gives_what_autograd_gives_of_linear(way, shape):
    layer = folded_bias.Layer(shape, torch.device("cpu"), torch.float64)
    leaves = [tensor.clone().requires_grad_() for tensor in (layer.inputs, layer.weights, layer.bias)]
    expected = torch.nn.functional.linear(*leaves)
    gradients = torch.autograd.grad(expected, leaves, layer.gradient)

    one = folded_bias.WAYS[way]
    for _ in range(2):  # what is moved out is moved in again
        one.arrive(layer)
        torch.testing.assert_close(one.forward(layer), expected.detach())
        torch.testing.assert_close(one.backward(layer), tuple(gradients))


def test_a_layer_is_timed_each_way_and_the_ratios_are_within_a_round(tmp_path, capsys):
    rows = folded_bias.measure([folded_bias.shape_of("8x6x4")], "cpu", "float32", 2, tmp_path)

    assert pq.read_table(tmp_path / "realign.parquet").to_pylist() == rows
    assert pq.read_schema(tmp_path / "realign.parquet").equals(folded_bias.REALIGN)
    assert (tmp_path / "realign.csv").read_text().count("\n") == len(rows) + 1
    parts = {part: [row["way"] for row in rows if row["part"] == part] for part in folded_bias.YARDSTICKS}
    assert parts == {
        "forward": list(folded_bias.WAYS),
        "backward": list(folded_bias.WAYS),
        "move": ["cat", "shift_right"],
    }
    assert all(0 < row["least_s"] <= row["median_s"] <= row["largest_s"] for row in rows)
    own = [row for row in rows if row["way"] == folded_bias.YARDSTICKS[row["part"]]]
    assert [(row["times_as_fast_least"], row["times_as_fast_largest"]) for row in own] == [(1, 1)] * 3
    assert [line["layer"] for line in folded_bias.on_screen(rows)] == ["8x6x4"] * 3
    assert capsys.readouterr().err == "timing 8x6x4, 2 rounds\n"


@pytest.mark.parametrize("wrong", ["8x6", "8x6x0", "axbxc", "8x6x4x2", ""])
def test_a_layer_that_cannot_be_is_told(wrong):
    with pytest.raises(ValueError, match="rowsxinputsxoutputs"):
        folded_bias.shape_of(wrong)
