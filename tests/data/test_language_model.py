"""The language model and its texts: size, causality, an entropy known exactly, and the studies of Baidu's scaling."""

import argparse
import csv
import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ddp_hpc.analysis.tables.scaling import karp_flatt
from ddp_hpc.bench import exchange
from ddp_hpc.cli import main
from ddp_hpc.config import catalog, grid, spec
from ddp_hpc.config.claims import Claim
from ddp_hpc.data import markov_text, text
from ddp_hpc.data._tasks import TASKS
from ddp_hpc.models import transformer
from ddp_hpc.profiling import flops

STUDIES = Path(__file__).parents[2] / "config" / "studies"
TASK = TASKS["next_token"]


@pytest.fixture(autouse=True)
def one_thread():
    """So small a model is no faster with more, and far slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def study(name):
    return grid.expand(STUDIES / f"{name}.yaml")


@pytest.mark.parametrize(("name", "count"), [("language_model", 302_835_712), ("language_model_small", 3_233_280)])
def test_the_models_of_the_studies_have_300_and_3_million_parameters(name, count):
    chosen = study(name).specs[0]
    context, options = chosen.dataset.options["context"], chosen.model.options
    with torch.device("meta"):
        model = transformer.build((context,), text.OUTPUTS, **options)
    layers, width = options.get("layers", 4), options.get("width", 256)
    # of a layer: attention 4 w^2 + 4 w, perceptron 8 w^2 + 5 w, two norms 4 w; then embeddings and the last norm
    counted = layers * (12 * width**2 + 13 * width) + (text.OUTPUTS + context) * width + 2 * width
    assert sum(parameter.numel() for parameter in model.parameters()) == counted == count


def small(context=12, vocabulary=20, **options):
    torch.manual_seed(0)
    return transformer.build((context,), vocabulary, **{"layers": 2, "width": 16, "heads": 2} | options).double()


@pytest.mark.parametrize("training", [True, False])
def test_outputs_depend_on_no_later_token_but_on_every_earlier_one(training):
    model = small().train(training)
    tokens = torch.randint(20, (3, 12))
    with torch.inference_mode(not training):
        before = model(tokens)
        for place in range(12):
            other = tokens.clone()
            other[:, place] = (other[:, place] + 1) % 20
            changed = (model(other) - before).abs().amax(dim=(0, 2))
            assert (changed[:place] < 1e-12).all()
            assert (changed[place:] > 1e-9).all()


def test_evaluation_gives_the_outputs_of_training_and_shorter_samples_are_taken():
    model, tokens = small(), torch.randint(20, (3, 12))
    expected = model(tokens).detach()
    model.eval()
    with torch.inference_mode():
        torch.testing.assert_close(model(tokens), expected)
        torch.testing.assert_close(model(tokens[:, :5]), expected[:, :5])


def test_layers_start_apart_and_tied_embeddings_are_one_matrix():
    model = small()
    first, second = (layer.linear1.weight for layer in model.layers)
    assert not torch.equal(first, second)
    assert model.logits.weight is model.tokens.weight
    assert small(tied=False).logits.weight is not small(tied=False).tokens.weight
    guess = F.cross_entropy(model(torch.randint(20, (8, 12))).flatten(0, 1), torch.randint(20, (96,)))
    assert guess.item() == pytest.approx(np.log(20), abs=0.05)  # at the start no token is preferred


def test_what_is_no_row_of_tokens_is_refused():
    with pytest.raises(ValueError, match="takes rows of tokens"):
        transformer.build((3, 32, 32), 10)
    with pytest.raises(ValueError, match="width=10 with heads=4, expected: multiples of 4"):
        transformer.build((8,), 256, width=10)


FIELDS = {"exchange": "ring", "world_size": 2, "batch_size": 4, "learning_rate": 0.1, "budget": {"steps": 1}}


@pytest.mark.parametrize("dataset", ["text", "markov_text"])
def test_models_of_tokens_and_of_numbers_are_told_apart_at_planning(dataset):
    spec.load(FIELDS | {"model": "transformer", "dataset": dataset})
    for name in set(catalog.names("model")) - {"transformer"}:
        with pytest.raises(ValueError, match=rf"'{name}' takes numbers, dataset '{dataset}' has tokens.*: transformer"):
            spec.load(FIELDS | {"model": name, "dataset": dataset})
    with pytest.raises(ValueError, match=r"'transformer' takes tokens, dataset 'digits' has numbers; .*: .*mlp"):
        spec.load(FIELDS | {"model": "transformer", "dataset": "digits"})


def test_the_work_of_a_sample_is_counted_from_tokens():
    """Three times, for forward and backward pass, two operations for each weight of a product and token."""
    model = small(vocabulary=40)
    found = flops.per_sample(model, list(model.parameters()), torch.zeros(2, 12, dtype=torch.int64))
    products = 3 * 2 * 12 * (2 * 12 * 16**2 + 40 * 16)
    attention = 3 * 2 * 2 * 12 * 12 * 16 * 2  # scores and their use; not counted on every device
    assert products <= found <= products + 2 * attention


def test_the_loss_is_that_of_each_token_and_the_metric_the_share_that_is_right():
    draw = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(3, 5, 7, generator=draw), torch.randint(7, (3, 5), generator=draw)
    chances = outputs.softmax(dim=-1)
    one_by_one = [-chances[i, j, targets[i, j]].log() for i in range(3) for j in range(5)]
    assert TASK.loss(outputs, targets).item() == pytest.approx(float(np.mean(one_by_one)), rel=1e-6)
    right = [outputs[i, j].argmax() == targets[i, j] for i in range(3) for j in range(5)]
    assert TASK.metric_sum(outputs, targets).item() / 3 == pytest.approx(np.mean(right))


def test_markov_text_is_the_same_everywhere_and_another_for_another_seed(tmp_path):
    data = markov_text.build(tmp_path, samples=100)
    content = torch.cat([data.test.inputs, data.train.inputs]).numpy().astype(np.uint8).tobytes()
    assert hashlib.sha256(content).hexdigest() == "b6e24fdb4e78188cf0f885229387058742dd43708efe8d74e7a3ecacd9b07d17"
    assert data.train.inputs.dtype == data.train.targets.dtype == torch.int64
    assert torch.equal(data.train.inputs[:, 1:], data.train.targets[:, :-1])
    assert data.shape == (64,)
    assert not torch.equal(markov_text.build(tmp_path, samples=100, seed=1).train.inputs, data.train.inputs)


def conditional_entropy(rows, order):
    """The entropy of a symbol given the `order` before it, from how often each word of `order` + 1 symbols occurs."""

    def entropy(length):
        words = sum(rows[:, place : rows.shape[1] - order + place] * 64**place for place in range(length))
        shares = np.unique(words, return_counts=True)[1] / words.size
        return -(shares * np.log(shares)).sum()

    return entropy(order + 1) - entropy(order)


@pytest.mark.parametrize(("alphabet", "order"), [(8, 1), (64, 1), (5, 3)])
def test_the_entropy_of_markov_text_is_the_one_that_is_known(tmp_path, alphabet, order):
    data = markov_text.build(tmp_path, samples=5000, context=64, alphabet=alphabet, order=order)
    rows = torch.cat([data.train.inputs, data.train.targets[:, -1:]], dim=1).numpy()
    rate = markov_text.floor(10**9, alphabet, order)
    assert rows.max() == alphabet - 1
    assert conditional_entropy(rows, order) == pytest.approx(rate, rel=0.01)
    if order > 1:  # fewer symbols tell less
        assert conditional_entropy(rows, order - 1) > rate + 0.05


def test_the_floor_is_the_mean_of_what_each_target_leaves_open():
    """Of 4 targets after the first of 3 evenly drawn symbols, two are drawn evenly and two follow."""
    p = np.array([1, 1 / 4]) / 1.25
    assert markov_text.floor(4, 2, 3) == pytest.approx((2 * np.log(2) - 2 * (p * np.log(p)).sum()) / 4)


def test_a_model_learns_markov_text_down_to_its_entropy_and_no_further(tmp_path):
    data = markov_text.build(tmp_path, samples=3840, context=8, alphabet=4)
    torch.manual_seed(0)
    model = transformer.build((8,), 256, layers=1, width=32, heads=2)
    rule = torch.optim.Adam(model.parameters(), 5e-3)
    for inputs, targets in zip(data.train.inputs.split(32), data.train.targets.split(32), strict=True):
        rule.zero_grad()
        TASK.loss(model(inputs), targets).backward()
        rule.step()
    with torch.inference_mode():
        outputs = model(data.test.inputs)
    losses = F.cross_entropy(outputs.flatten(0, 1), data.test.targets.flatten(), reduction="none").numpy()
    floor, error = markov_text.floor(8, 4, 1), losses.std() / np.sqrt(losses.size)
    assert floor - 4 * error < losses.mean() < floor + 0.1
    assert TASK.metric_sum(outputs, data.test.targets) / 256 == pytest.approx(markov_text.chances(4)[0], abs=0.03)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alphabet": 257}, "alphabet=257, expected: 2 to 256"),
        ({"alphabet": 64, "order": 4}, "needs a table of 16777216 symbols"),
        ({"alphabet": 2, "order": 9, "context": 8}, "context=8 with order=9, expected: 9 and more"),
    ],
)
def test_a_chain_that_cannot_be_is_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        markov_text.build(tmp_path, **options)


def test_text_is_the_bytes_of_all_files_in_the_order_of_their_names(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.txt").write_bytes(b"second ")
    (tmp_path / "a.txt").write_bytes("f\u00efrst ".encode())
    (tmp_path / "c").write_bytes(b"third, and enough of it")
    (tmp_path / ".hidden").write_bytes(b"not this")
    data = text.build(tmp_path, context=4, test_share=0.2)
    rows = torch.cat([data.train.inputs, data.test.inputs])
    whole = "f\u00efrst second third, and enough of it".encode()
    assert bytes(rows.flatten().tolist()) == whole[: rows.numel()]
    targets = torch.cat([data.train.targets, data.test.targets])
    assert bytes(targets.flatten().tolist()) == whole[1 : rows.numel() + 1]
    assert len(whole) - 4 <= rows.numel() + 1 <= len(whole)
    assert len(data.test) == round(0.2 * len(rows))
    file = text.build(Path("unused"), path=str(tmp_path / "c"), context=4, test_share=0.5)
    assert bytes(file.train.inputs[0].tolist()) == b"thir"


def test_text_that_is_not_there_or_too_little_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none is missing.*path: /absolute/path"):
        text.build(tmp_path / "none")
    (tmp_path / "short").write_bytes(b"123456789")
    with pytest.raises(ValueError, match="has 2 sequences of context=4 bytes, of which 0 are to be tested on"):
        text.build(tmp_path, context=4)


@pytest.mark.parametrize("name", ["text", "markov_text"])
def test_constants_that_planning_reads_fit_any_context(tmp_path, name):
    (tmp_path / "some").write_bytes(bytes(range(256)) * 4)
    module = {"text": text, "markov_text": markov_text}[name]
    constants = catalog.constants("dataset", name)
    data = module.build(tmp_path, context=9)
    assert (constants["SHAPE"], constants["TOKENS"], data.shape) == ((None,), True, (9,))
    assert max(data.train.inputs.max(), data.train.targets.max()) < constants["OUTPUTS"]


def test_the_study_is_that_of_the_post():
    """Batch 32, 300 steps, 1 to 40 GPUs in 5 nodes of 8; no communication, after the backward pass, and beside it."""
    specs = study("language_model").specs
    ranks = [1, 2, 4, 8, 16, 24, 32, 40]
    exchanges = ["ring", "ring_overlapped", "nccl", "torch_ddp"]
    points = [(one.exchange.name, one.world_size) for one in specs if one.seed == 0]
    assert sorted(points) == sorted([("none", 1), *((name, n) for name in exchanges for n in ranks)])
    assert {(one.batch_size, one.steps_asked, one.device, one.placement) for one in specs} == {
        (32, 300, "cuda", "packed")
    }
    overlaps = {name: catalog.constants("exchange", name)["OVERLAPS"] for name in exchanges}
    assert overlaps == {"ring": False, "ring_overlapped": True, "nccl": False, "torch_ddp": True}


@pytest.mark.parametrize("name", ["language_model", "language_model_small"])
def test_the_posts_example_takes_about_400_ms_by_the_formula(name):
    """1.2 GB of gradients, 40 GPUs, 6 GB/s: 2 x 39/40 x 1.2 GB are 2.34 GB, and 390 ms."""
    claims: dict[str, Claim] = {claim.id: claim for claim in study(name).study.claims}
    assert claims["bytes_per_gpu"].ours.predicted.number == pytest.approx(2.34e9)
    assert claims["seconds_per_iteration"].ours.predicted.number == pytest.approx(0.39)
    for claim, published in (("bytes_per_gpu", 2.4e9), ("seconds_per_iteration", 0.4)):
        low, high = claims[claim].expected
        assert claims[claim].published == published
        assert low <= claims[claim].ours.predicted.number <= high


def test_planning_the_study_needs_no_torch():
    code = f"""
import sys
from pathlib import Path
from ddp_hpc.config import grid
from ddp_hpc.runs import identity
runs = [identity.run_id(one) for one in grid.expand(Path({str(STUDIES / "language_model.yaml")!r})).specs]
assert len(set(runs)) == 99
assert not {{"torch", "mpi4py", "numpy"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_published_numbers_are_those_of_the_studies():
    folder = STUDIES.parents[1] / "results" / "published" / "baidu_allreduce"
    numbers = {row["quantity"]: float(row["value"]) for row in csv.DictReader((folder / "numbers.csv").open())}
    claims = {claim.id: claim for claim in study("language_model").study.claims}
    assert claims["times_as_fast_on_40"].published == numbers["speedup on 40 GPUs"]
    assert claims["seconds_per_iteration"].published == numbers["exchange per iteration"]
    assert karp_flatt(numbers["speedup on 40 GPUs"], 40) == pytest.approx(0.0074, abs=5e-5)
    largest = study("language_model").specs[-1]
    assert largest.world_size == numbers["nodes"] * numbers["GPUs per node"]
    assert (largest.batch_size, largest.steps_asked) == (
        numbers["samples per GPU and iteration"],
        numbers["iterations"],
    )
    floats = [int(row["floats"]) for row in csv.DictReader((folder / "allreduce_test.csv").open())]
    assert floats == [0, *main.BAIDU_FLOATS]


def test_the_sizes_of_baidus_test_are_swept_as_far_as_they_fit_into_memory():
    parser = argparse.ArgumentParser()
    main.VERBS["bench"].add_to(parser)
    sizes = parser.parse_args(["exchange", "--baidu"]).sizes
    swept = exchange.sweep_of(["ring"], [2], sizes, 1, "mpiexec").sizes
    assert swept == [4 * floats for floats in main.BAIDU_FLOATS]
    assert max(exchange.that_fit(sizes, world_size=2, free_bytes=16 * 10**9)) == 4 * 67_108_864
