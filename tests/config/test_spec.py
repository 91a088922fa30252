"""A spec is one run, however it is spelled: same meaning same hash, other meaning other hash."""

import itertools
import json
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ddp_hpc.config import catalog, spec
from ddp_hpc.config.spec import COMPONENTS, RunSpec

MINIMAL = {
    "model": "mlp",
    "dataset": "digits",
    "exchange": "ring",
    "world_size": 2,
    "batch_size": 16,
    "learning_rate": 0.1,
    "budget": {"samples_seen": 3200},
}


def numbers(least: float, most: float) -> st.SearchStrategy:
    return st.floats(least, most).map(lambda number: float(f"{number:.6g}"))  # six digits, as people write


@st.composite
def specs(draw) -> dict:
    """Any valid spec as a study may give it, fields at their defaults now and then written out."""
    scaling = draw(st.sampled_from(["none", "linear", "sqrt"]))
    optimizer = draw(st.sampled_from(["sgd", "adam"]))
    dtype = draw(st.sampled_from(["float32", "float64"]))
    widths = draw(st.lists(st.integers(1, 512), max_size=3))
    ranks, batch = draw(st.integers(1, 64)), draw(st.integers(1, 512))
    steps = draw(st.integers(1, 10_000))
    optional = {
        "optimizer": st.just(optimizer),
        "momentum": st.just(0.0) if optimizer == "adam" else numbers(0, 0.99),
        "weight_decay": numbers(0, 1),
        "seed": st.integers(0, 2**31 - 1),
        "sampling": st.sampled_from(["global", "partitioned"]),
        "dtype": st.just(dtype),
        "learning_rate_warm_up_steps": st.integers(0, 100),
        "evaluate_every_steps": st.none() | st.integers(1, 100),
        "noise_scale_every_steps": st.none() | st.integers(1, 100),
        "device": st.sampled_from([None, "cpu", "cuda"]),
        "threads_per_rank": st.none() | st.integers(1, 64),
        "precision": st.just("full") if dtype == "float64" else st.sampled_from(["full", "tf32", "bfloat16"]),
        "data_placement": st.sampled_from(["device", "host"]),
        "compile": st.booleans(),
        "capture": st.sampled_from(["auto", "off"]),
        "deterministic": st.booleans(),
        "share_gpu": st.booleans(),
    }
    given = {
        "model": draw(st.sampled_from(["mlp", {"name": "mlp"}, {"name": "mlp", "widths": widths}])),
        "dataset": "digits",
        "exchange": draw(st.sampled_from(["ring", "mpi_allreduce"])),
        "world_size": ranks,
        "batch_size": batch,
        "learning_rate": draw(numbers(1e-9, 1e3)),
        "budget": draw(
            st.sampled_from(
                [{"samples_seen": ranks * batch * steps}, {"steps": steps}, {"epochs": steps}, {"seconds": steps / 7}]
            )
        ),
    }
    if scaling != "none":
        given |= {"learning_rate_scaling": scaling, "base_batch_size": draw(st.integers(1, 1024))}
    return given | draw(st.fixed_dictionaries({}, optional=optional))


@given(specs())
def test_a_spec_comes_back_from_its_canonical_form(fields):
    one = spec.load(fields)
    through_json = json.loads(json.dumps(one.canonical))
    again = spec.load(through_json)
    assert again == one
    assert again.hash == one.hash
    assert again.canonical == one.canonical
    assert again.columns() == one.columns()


@given(specs(), st.randoms(use_true_random=False))
def test_order_spelling_and_written_defaults_do_not_matter(fields, shuffler):
    keys = list(fields)
    shuffler.shuffle(keys)
    other = {key: _spelled_otherwise(fields[key]) for key in keys}
    defaults = {name: field.default for name, field in RunSpec.model_fields.items() if not field.is_required()}
    assert spec.load(defaults | other).hash == spec.load(fields).hash


def _spelled_otherwise(value):
    if isinstance(value, dict):
        return {key: _spelled_otherwise(value[key]) for key in reversed(list(value))}
    if isinstance(value, list):
        return tuple(map(_spelled_otherwise, value))
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return float(value)
    return value * (1 + 1e-15) if isinstance(value, float) else value


@given(specs(), specs())
def test_another_canonical_form_is_another_hash(one, other):
    a, b = spec.load(one), spec.load(other)
    assert (a.canonical == b.canonical) == (a.hash == b.hash) == (a == b)


def test_each_field_counts():
    other = {
        "model": {"name": "mlp", "widths": [7]},
        "dataset": {"name": "digits", "train_samples": 100},
        "exchange": "mpi_allreduce",
        "world_size": 4,
        "batch_size": 32,
        "learning_rate": 0.2,
        "budget": {"steps": 100},
        "optimizer": "adam",
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "seed": 1,
        "sampling": "partitioned",
        "dtype": "float64",
        "learning_rate_scaling": "linear",
        "base_batch_size": 16,
        "learning_rate_warm_up_steps": 5,
        "evaluate_every_steps": 10,
        "noise_scale_every_steps": 10,
        "device": "cpu",
        "threads_per_rank": 1,
        "precision": "bfloat16",
        "data_placement": "host",
        "compile": True,
        "capture": "off",
        "deterministic": True,
        "share_gpu": True,
        "placement": "spread",
        "ranks_per_node": 2,
        "partition": "gpu",
        "program": {"command": "python train.py", "files": ["train.py"]},
    }
    assert other.keys() == RunSpec.model_fields.keys(), "a new field needs a line here"
    scaled = {"learning_rate_scaling": "sqrt", "base_batch_size": 8}
    needed = dict.fromkeys(scaled, scaled) | {"ranks_per_node": {"placement": "spread"}}
    hashes = {spec.load(MINIMAL).hash}
    for name, value in other.items():
        point = {key: one for key, one in MINIMAL.items() if name != "program" or key not in COMPONENTS}
        hashes.add(spec.load(point | needed.get(name, {}) | {name: value}).hash)
    assert len(hashes) == len(other) + 1


@pytest.mark.parametrize("exchange", ["weight_average", "async_server", "hogwild"])
def test_ranks_with_weights_of_their_own_have_no_noise_scale(exchange):
    with pytest.raises(ValidationError, match=r"noise_scale_every_steps=5 .* the same weights; expected: .*ring"):
        spec.load(MINIMAL | {"exchange": exchange, "world_size": 2, "noise_scale_every_steps": 5})


def test_a_new_field_with_a_default_changes_no_old_hash():
    class Later(RunSpec):
        compression: str = "none"

    assert Later.model_validate(MINIMAL).hash == spec.load(MINIMAL).hash
    assert Later.model_validate(MINIMAL | {"compression": "fp16"}).hash != spec.load(MINIMAL).hash


def test_the_hash_is_the_same_in_fresh_processes():
    program = "import json, sys; from ddp_hpc.config import spec; print(spec.load(json.loads(sys.argv[1])).hash)"
    found = set()
    for seed, digits in itertools.product("01", ["0.1", "0.10", "1e-1"]):
        keys = list(MINIMAL)
        random.Random(seed + digits).shuffle(keys)
        text = json.dumps({key: MINIMAL[key] for key in keys} | {"learning_rate": "here"}).replace('"here"', digits)
        out = subprocess.run(
            [sys.executable, "-c", program, text],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(out.stdout.strip())
    assert found == {spec.load(MINIMAL).hash}


@given(specs())
def test_names_are_short_file_safe_and_hold_no_hyphen_trouble(fields):
    readable = spec.load(fields).readable
    assert 0 < len(readable) <= 48
    assert set(readable) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-")


def test_a_budget_in_samples_is_a_whole_number_of_steps():
    """Every rank takes the same number of steps, and samples seen = steps x batch x ranks."""
    one = spec.load(MINIMAL)
    assert (one.global_batch_size, one.steps_asked, one.samples_asked) == (32, 100, 3200)
    by_steps = spec.load(MINIMAL | {"budget": {"steps": 100}})
    assert (by_steps.steps_asked, by_steps.samples_asked) == (100, 3200)
    by_time = spec.load(MINIMAL | {"budget": {"seconds": 1}})
    assert (by_time.steps_asked, by_time.samples_asked) == (None, None)
    with pytest.raises(ValidationError, match=r"multiples of 32, .* 3168 or 3200"):
        spec.load(MINIMAL | {"budget": {"samples_seen": 3199}})


@pytest.mark.parametrize(
    ("dataset", "epochs", "batch", "steps"),
    [
        ("digits", 2, 16, 90),  # 2 ranks: 2874 samples are 89.8 steps of 32
        ("digits", 2.0, 64, 22),  # 22.45
        ("digits", 0.5, 2000, 1),  # 718 samples of 4000
        ({"name": "digits", "train_samples": 64}, 3, 16, 6),
        ("cifar10", 1, 125, 200),
        ("step_function", 5, 1, 1000),
        ({"name": "step_function", "samples": 30}, 1, 5, 3),
    ],
)
def test_epochs_are_the_nearest_integer_of_steps(dataset, epochs, batch, steps):
    model = "alexnet" if dataset == "cifar10" else "mlp"
    given = {"dataset": dataset, "model": model, "batch_size": batch, "budget": {"epochs": epochs}}
    one = spec.load(MINIMAL | given)
    assert (one.steps_asked, one.samples_asked) == (steps, steps * 2 * batch)
    assert spec.load(one.canonical) == one


def test_epochs_of_a_dataset_that_does_not_say_its_size_are_refused_with_what_to_do():
    with pytest.raises(ValidationError, match=r"'strain_stress' has is not known .* samples_seen or .* TRAIN_SAMPLES"):
        spec.load(MINIMAL | {"dataset": "strain_stress", "budget": {"epochs": 1}})
    for wrong in (0, -1, float("inf"), float("nan"), "2"):
        with pytest.raises(ValidationError):
            spec.load(MINIMAL | {"budget": {"epochs": wrong}})


@pytest.mark.parametrize("ranks", [2, 3, 1000])
def test_exchange_none_is_for_one_rank(ranks):
    spec.load(MINIMAL | {"exchange": "none", "world_size": 1})
    with pytest.raises(ValidationError, match=f"'none' allows world_size up to 1, given {ranks}; .* ring"):
        spec.load(MINIMAL | {"exchange": "none", "world_size": ranks, "budget": {"steps": 1}})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", float("nan")),
        ("learning_rate", float("inf")),
        ("learning_rate", 10**400),
        ("learning_rate", True),
        ("learning_rate", "0.1"),
        ("momentum", 0.9999999999999999),  # is 1 in twelve digits
        ("world_size", True),
        ("world_size", 2.5),
        ("world_size", "2"),
        ("batch_size", 2**31),
        ("seed", -1),
        ("seed", 2**31),
        ("model", {"widths": [3]}),
        ("model", {"name": "mlp", "widths": 3}),
        ("model", {"name": "mlp", "widths": [0]}),
        ("model", {"name": "mlp", "widths": [True]}),
        ("model", "../exchange/ring"),
        ("model", "_helpers"),
        ("model", ""),
        ("budget", {}),
        ("budget", {"steps": 1, "seconds": None, "samples_seen": 32}),
        ("world_sise", 2),
    ],
)
def test_what_is_no_spec_is_refused(field, value):
    with pytest.raises(ValidationError):
        spec.load(MINIMAL | {field: value})


def test_shapes_of_model_and_dataset_must_fit(monkeypatch):
    shapes = {("model", "mlp"): {"INPUT_SHAPE": (3, None, 32)}, ("dataset", "digits"): {"SHAPE": (3, 8, 32)}}
    said = catalog.constants
    monkeypatch.setattr(catalog, "constants", lambda kind, name: {**said(kind, name), **shapes.get((kind, name), {})})
    spec.load(MINIMAL)
    for wrong in [(3, 8, 31), (3, 8), (3, 8, 32, 1), (64,)]:
        shapes["dataset", "digits"] = {"SHAPE": wrong}
        with pytest.raises(ValidationError, match="takes samples of shape"):
            spec.load(MINIMAL)


def test_adam_has_no_momentum_and_scaling_needs_its_base():
    with pytest.raises(ValidationError, match=r"momentum=0\.9 with optimizer=adam: it belongs to sgd"):
        spec.load(MINIMAL | {"optimizer": "adam", "momentum": 0.9})
    for fields in ({"learning_rate_scaling": "linear"}, {"base_batch_size": 32}):
        with pytest.raises(ValidationError, match="need base_batch_size"):
            spec.load(MINIMAL | fields)


def test_coarse_products_are_for_float32():
    for precision in ("tf32", "bfloat16"):
        spec.load(MINIMAL | {"precision": precision})
        with pytest.raises(ValidationError, match=f"precision={precision} with dtype=float64"):
            spec.load(MINIMAL | {"precision": precision, "dtype": "float64"})


def test_columns_are_flat_and_complete():
    row = spec.load(MINIMAL | {"model": {"name": "mlp", "widths": [8, 4]}}).columns()
    assert row["model"] == "mlp"
    assert row["model_options"] == '{"widths":[8,4]}'
    assert row["exchange_options"] == "{}"
    assert row["budget"] == "3200 samples_seen"
    assert all(value is None or isinstance(value, str | int | float) for value in row.values())


@pytest.mark.parametrize(
    ("exchange", "message"),
    [
        (
            {"name": "mpi_allreduce", "bucket_mb": 1, "compression": "top_k"},
            "'bucket_mb' of exchange 'mpi_allreduce': given 1.0 with compression: top_k, .* with compression: none",
        ),
        ({"name": "mpi_allreduce", "kept": 0.5}, "given 0.5 with compression: none, .* with compression: top_k"),
        ({"name": "parameter_server", "kept": 0.5}, "given 0.5 with compression: none, .* with compression: top_k"),
        ({"name": "mpi_allreduce", "compression": "top_k", "kept": 0}, "expected: a number > 0, < 1"),
        ({"name": "torch_ddp", "bucket_mb": 1e300}, "expected: a number \u2265 0.001, \u2264 1e6"),
        ({"name": "ring_overlapped", "bucket_mb": 1e-9}, "expected: a number \u2265 0.001, \u2264 1e6"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_any_job(exchange, message):
    with pytest.raises(ValueError, match=message):
        spec.load(MINIMAL | {"exchange": exchange})
