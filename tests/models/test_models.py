"""Every model of the catalogue builds, learns from every dataset that fits, and has the published size."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ddp_hpc.models import alexnet, alexnet_l2, folded_mlp, mlp, neuron, resnet


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


@pytest.mark.parametrize(("layers", "count"), [(20, 269_722), (32, 464_154), (56, 853_018)])
def test_resnets_for_small_images_have_the_published_parameters(layers, count):
    """K. He et al. (2015), table 6: 0.27, 0.46 and 0.85 million, with shortcuts that have none."""
    with torch.device("meta"):
        model = resnet.build((3, 32, 32), 10, layers=layers)
    assert parameters(model) == count
    weighted = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert len(weighted) == layers


@pytest.mark.parametrize(("layers", "count"), [(50, 25_557_032), (101, 44_549_160), (152, 60_192_808)])
def test_resnets_for_imagenet_have_the_parameters_of_torchvisions(layers, count):
    with torch.device("meta"):
        model = resnet.build((3, 224, 224), 1000, layers=layers)
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    assert parameters(model) == count
    of_shortcuts = 4  # projections, one at the beginning of each stage
    assert sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in model.modules()) == layers + of_shortcuts


def test_a_shortcut_without_parameters_takes_every_second_pixel_and_adds_channels_of_zeros():
    x = torch.arange(2 * 3 * 4 * 4.0).view(2, 3, 4, 4)
    found = resnet.Pad(2, 5)(x)
    assert found.shape == (2, 8, 2, 2)
    assert torch.equal(found[:, :3], x[:, :, ::2, ::2])
    assert not found[:, 3:].any()


def test_a_resnet_takes_images_of_any_size_and_normalises_by_the_batch_while_training():
    torch.manual_seed(0)
    model = resnet.build((1, 8, 12), 7)
    x = torch.randn(3, 1, 8, 12)
    before = [buffer.clone() for buffer in model.buffers()]
    assert model(x).shape == (3, 7)
    assert not torch.equal(model(x)[0], model(x[:2])[0])
    assert any(not torch.equal(now, then) for now, then in zip(model.buffers(), before, strict=True))
    model.eval()
    torch.testing.assert_close(model(x)[:2], model(x[:2]))
    with pytest.raises(ValueError, match="takes images of shape"):
        resnet.build((64,), 10)


@pytest.mark.parametrize("way", ["cat", "shifts", "strides"])
def test_a_perceptron_with_folded_biases_trains_as_one_with_biases_beside(way):
    """From the same seed, step by step, up to rounding; and it can be asked twice, in training and in evaluation."""
    torch.manual_seed(0)
    beside = mlp.build((2, 3), 4, widths=(5, 7)).double()
    torch.manual_seed(0)
    folded = folded_mlp.build((2, 3), 4, widths=(5, 7), way=way).double()
    assert parameters(folded) == parameters(beside)
    draw = torch.Generator().manual_seed(1)
    for _ in range(4):
        x, y = (torch.randn(9, *shape, generator=draw, dtype=torch.float64) for shape in ((2, 3), (4,)))
        kept = x.clone()
        torch.testing.assert_close(folded.eval()(x), beside.eval()(x), rtol=1e-12, atol=1e-12)
        for model in (beside, folded):
            gradients = torch.autograd.grad((model.train()(x) - y).square().mean(), list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= 0.5 * gradient
            model.gradients = gradients
        assert torch.equal(x, kept)
        for layer in range(3):
            weight, bias = beside.gradients[2 * layer : 2 * layer + 2]
            expected = torch.cat([bias[:, None], weight], 1)
            torch.testing.assert_close(folded.gradients[layer], expected, rtol=1e-12, atol=1e-12)


def test_a_penalty_in_the_loss_pulls_as_weight_decay_does_and_is_not_in_evaluation():
    torch.manual_seed(0)
    plain = alexnet.build((1, 32, 32), 10).double()
    torch.manual_seed(0)
    penalised = alexnet_l2.build((1, 32, 32), 10, penalty=0.3).double()
    x, y = torch.randn(4, 1, 32, 32, dtype=torch.float64), torch.tensor([1, 0, 9, 1])
    weights = list(penalised.parameters())

    found = alexnet_l2.loss(penalised(x), y)

    squares = sum(weight.square().sum() for weight in weights)
    torch.testing.assert_close(found, F.cross_entropy(plain(x), y) + 0.15 * squares)
    expected = torch.autograd.grad(F.cross_entropy(plain(x), y), list(plain.parameters()))
    for weight, gradient, alone in zip(weights, torch.autograd.grad(found, weights), expected, strict=True):
        torch.testing.assert_close(gradient, alone + 0.3 * weight)
    assert torch.equal(penalised.eval()(x), plain(x))
    assert alexnet_l2.loss(penalised(x), y) == F.cross_entropy(plain(x), y)
    with pytest.raises(ValueError, match="takes datasets of 10 classes"):
        alexnet_l2.build((1, 32, 32), 5)
