"""Every model of the catalogue builds, learns from every dataset that fits, and has the published size."""

import pytest
import torch
from torch import nn

from ddp_hpc.models import alexnet, mlp, neuron


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_strain_stress_network_has_the_published_number_of_parameters():
    assert parameters(mlp.build((3, 200), 2, widths=(150, 200, 163))) == 153_441


def test_a_perceptron_without_hidden_layers_is_linear():
    model = mlp.build((3,), 2, widths=())
    x = torch.randn(2, 3)
    torch.testing.assert_close(model(x[:1] + x[1:]) + model(torch.zeros(1, 3)), model(x[:1]) + model(x[1:]))


def test_relu_stands_between_the_layers_but_not_at_the_end():
    assert [type(layer).__name__ for layer in mlp.build((4,), 2, widths=(3,))] == [
        "Flatten",
        "Linear",
        "ReLU",
        "Linear",
    ]


def test_the_neuron_is_a_sigmoid_with_the_published_gradient():
    """SHM-Learn-Dist, section 3: d/dw of the absolute error is sign(s - y) s (1 - s) x."""
    torch.manual_seed(0)
    model = neuron.build((1,), 1).double()
    assert parameters(model) == 1
    assert 0 <= model.weight.item() < 1
    x, y = torch.tensor([[0.3], [0.9]], dtype=torch.float64), torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    neuron.loss(model(x), y).backward()
    s = 1 / (1 + torch.exp(-model.weight.detach() * x))
    expected = (torch.sign(s - y) * s * (1 - s) * x).mean()
    assert model.weight.grad.item() == pytest.approx(expected.item(), rel=1e-12)


def test_the_published_loss_is_x_where_the_target_is_0_and_its_gradient_that_of_the_absolute_error():
    x, y = torch.tensor([[0.3], [0.9]], dtype=torch.float64), torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    losses, gradients = {}, {}
    for kind in ("absolute", "published"):
        torch.manual_seed(0)
        model = neuron.build((1,), 1, loss=kind).double()
        loss = neuron.loss(model(x), y)
        loss.backward()
        losses[kind], gradients[kind] = loss.item(), model.weight.grad.item()
    s = torch.sigmoid(model.weight.detach() * x)
    assert losses["absolute"] == pytest.approx((s[0] + 1 - s[1]).item() / 2, rel=1e-12)
    assert losses["published"] == pytest.approx((0.3 + 1 - s[1]).item() / 2, rel=1e-12)
    assert gradients["published"] == gradients["absolute"] != 0
    outputs = model.eval()(x)
    assert outputs.shape == y.shape
    assert neuron.loss(outputs, y).item() == pytest.approx(losses["absolute"], rel=1e-12)  # of a test set


def test_a_neuron_with_bias_has_two_parameters_and_can_step_at_a_half():
    model = neuron.build((1,), 1, bias=True)
    assert parameters(model) == 2
    with torch.no_grad():
        model.weight.fill_(1000.0)
        model.bias.fill_(-500.0)
    assert model(torch.tensor([[0.49], [0.51]])).flatten().tolist() == pytest.approx([0, 1], abs=1e-4)


def test_a_neuron_takes_single_numbers_only():
    with pytest.raises(ValueError, match="samples of shape"):
        neuron.build((64,), 10)


def test_the_small_alexnet_has_the_published_layers():
    model = alexnet.build((3, 32, 32), 10, dropout=0.5)
    shapes = [tuple(layer.weight.shape) for layer in model if hasattr(layer, "weight")]
    assert shapes == [(32, 3, 5, 5), (32, 32, 5, 5), (64, 32, 5, 5), (64, 1024), (32, 64), (10, 32)]
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ValueError, match="takes images of shape"):
        alexnet.build((3, 64, 64), 10)


def test_dropout_draws_anew_while_training_and_not_while_testing():
    model = alexnet.build((3, 32, 32), 10, dropout=0.5)
    x = torch.randn(1, 3, 32, 32)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
