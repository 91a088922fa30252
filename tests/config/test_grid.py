"""A grid is the product of its axes, less what is filtered; several grids are united; doubles are one run."""

import itertools
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from ddp_hpc.config import grid

BASE = {"model": "mlp", "dataset": "digits", "exchange": "ring", "world_size": 1, "batch_size": 8, "learning_rate": 0.1}


def expand(folder: Path, study: dict) -> grid.Expansion:
    file = folder / "try.yaml"
    with file.open("w") as stream:
        YAML().dump({"name": "try", "base": BASE, "budget": {"steps": 10}} | study, stream)
    return grid.expand(file)


def points(found: grid.Expansion, *names: str) -> list[tuple]:
    return [tuple(getattr(spec, name) for name in names) for spec in found.specs]


VALUES = {
    "world_size": st.integers(1, 8),
    "batch_size": st.integers(1, 64),
    "seed": st.integers(0, 5),
    "learning_rate": st.sampled_from([0.1, 0.2, 0.5, 1.0]),
    "threads_per_rank": st.sampled_from([None, 1, 2]),
}


@st.composite
def grids(draw) -> dict:
    """A grid whose fields are shared out among plain axes and one zip, with patterns over its own values."""
    names = draw(st.permutations(list(VALUES)))
    cut, last = sorted(draw(st.tuples(st.integers(0, 5), st.integers(0, 5))))
    one = {name: draw(st.lists(VALUES[name], min_size=1, max_size=3)) for name in names[:cut]}
    length = draw(st.integers(1, 3))
    together = {name: draw(st.lists(VALUES[name], min_size=length, max_size=length)) for name in names[cut:last]}
    patterns = st.lists(
        st.sampled_from(names).flatmap(lambda name: st.fixed_dictionaries({name: st.lists(VALUES[name], min_size=1)})),
        max_size=2,
    )
    whole = one | ({"zip": together} if together else {})
    return whole | {kind: found for kind in ("exclude", "when") if (found := draw(patterns))}


def brute_force(whole: dict) -> set[tuple]:
    """What a grid asks for, from all combinations of indices: nothing here follows the code."""
    names = list(VALUES)
    axes = {name: whole[name] for name in names if name in whole}
    together = whole.get("zip", {})
    rows = range(len(next(iter(together.values()), [None])))
    found = set()
    for values in itertools.product(*axes.values()):
        for row in rows:
            point = BASE | {"seed": 0, "threads_per_rank": None} | dict(zip(axes, values, strict=True))
            point |= {name: column[row] for name, column in together.items()}
            fits = {
                kind: [all(point[n] in wanted for n, wanted in pattern.items()) for pattern in whole.get(kind, [])]
                for kind in ("exclude", "when")
            }
            if not any(fits["exclude"]) and (any(fits["when"]) or not fits["when"]):
                found.add(tuple(point[name] for name in names))
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(grids(), min_size=1, max_size=2))
def test_a_grid_asks_for_what_brute_force_finds(tmp_path_factory, several):
    expected = set().union(*map(brute_force, several))
    folder = tmp_path_factory.mktemp("grid")
    if not expected:
        with pytest.raises(grid.StudyError, match="no point is left"):
            expand(folder, {"grid": several})
        return
    found = points(expand(folder, {"grid": several}), *VALUES)
    assert len(found) == len(set(found)), "each run once"
    assert set(found) == expected


def test_the_product_is_in_the_order_of_the_file(tmp_path):
    found = expand(tmp_path, {"grid": {"seed": [2, 1], "batch_size": [4, 3]}})
    assert points(found, "seed", "batch_size") == [(2, 4), (2, 3), (1, 4), (1, 3)]


def test_doubles_and_float_noise_collapse_and_are_told(tmp_path):
    found = expand(tmp_path, {"grid": {"learning_rate": [0.1, 0.1, 1e-1, 0.30000000000000004, 0.3]}})
    assert points(found, "learning_rate") == [(0.1,), (0.3,)]
    assert found.notes == ("3 of 5 runs are given more than once in the grid; each runs once",)


def test_repeats_are_seeds(tmp_path):
    found = expand(tmp_path, {"grid": {"seed": [10, 20]}, "repeats": 3})
    assert points(found, "seed") == [(10,), (11,), (12,), (20,), (21,), (22,)]


@pytest.mark.parametrize(("repeats", "told"), [(1, 0), (2, 1), (3, 0)])
def test_that_two_repeats_say_little_is_told_before_they_are_trained(tmp_path, repeats, told):
    notes = expand(tmp_path, {"repeats": repeats}).notes
    assert sum("repeats: two repeats have one degree of freedom" in note for note in notes) == len(notes) == told


def test_a_filter_sees_defaults_options_choices_and_shared_batches(tmp_path):
    study = {
        "grid": {
            "model": ["mlp", {"name": "mlp", "widths": [8]}],
            "exchange": ["none", "ring"],
            "world_size": [1, 2],
            "global_batch_size": 32,
            "exclude": [
                {"exchange": "none", "world_size": 2},
                {"momentum": 0.0, "batch_size": 16, "model.widths": [[8]]},  # default; 32 / 2; given in the choice
                {"model": {"name": "mlp", "widths": [8]}, "exchange": "none"},
            ],
        },
        "base": {name: value for name, value in BASE.items() if name != "batch_size"},
    }
    found = expand(tmp_path, study)
    assert sorted(f"{s.model} {s.exchange} {s.world_size} x {s.batch_size}" for s in found.specs) == [
        "mlp (widths 8) ring 1 x 32",
        "mlp none 1 x 32",
        "mlp ring 1 x 32",
        "mlp ring 2 x 16",
    ]


def test_a_pattern_that_fits_nothing_is_told(tmp_path):
    found = expand(tmp_path, {"grid": {"batch_size": [8, 16], "exclude": [{"batch_size": 16}, {"batch_size": 32}]}})
    assert points(found, "batch_size") == [(8,)]
    (note,) = found.notes
    assert "exclude: {batch_size: 32} fits no point" in note
    assert "try.yaml:" in note


def test_an_option_axis_goes_over_the_options_of_the_choice(tmp_path):
    found = expand(tmp_path, {"grid": {"model.widths": [[8], [64, 32], [16, 8]]}})
    assert [str(spec.model) for spec in found.specs] == ["mlp (widths 8)", "mlp", "mlp (widths 16-8)"]


def test_a_global_batch_is_shared_out(tmp_path):
    base = {name: value for name, value in BASE.items() if name != "batch_size"}
    found = expand(tmp_path, {"base": base, "grid": {"world_size": [1, 2, 4], "global_batch_size": 64.0}})
    assert points(found, "world_size", "batch_size") == [(1, 64), (2, 32), (4, 16)]


def test_nullable_fields_are_axes_like_others(tmp_path):
    found = expand(tmp_path, {"grid": {"threads_per_rank": [None, 1], "device": [None, "cpu"]}})
    assert points(found, "threads_per_rank", "device") == [(None, None), (None, "cpu"), (1, None), (1, "cpu")]


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("batch", [16, 32, 64, 128, 256, 512])
def test_307200_samples_are_exact_for_the_published_grid(tmp_path, ranks, batch):
    """SHM-Learn-Dist: batch 16 to 512 per rank on 1, 2, 4 and 8 workers."""
    study = {"budget": {"samples_seen": 307_200}, "grid": {"world_size": ranks, "batch_size": batch}}
    (spec,) = expand(tmp_path, study).specs
    assert spec.samples_asked == spec.steps_asked * batch * ranks == 307_200


def test_epochs_are_rounded_in_the_open(tmp_path):
    study = {"budget": {"epochs": 10}, "grid": {"world_size": [1, 2], "batch_size": [16, 64]}}
    *_, note = expand(tmp_path, study).notes
    assert "10 epochs of 1437 samples (digits) are 14370; runs see 14336 (-0.24%) at global batch 128; " in note
    assert "14368 (-0.01%) at global batch 16, 32" in note
    apart = expand(tmp_path, study | {"grid": {"world_size": 1, "batch_size": [16, 800]}}).notes[-1]
    assert "1 of 1 groups points see 14368 to 14400 samples" not in apart  # within area_noise
    apart = expand(tmp_path, study | {"budget": {"epochs": 1}, "rules": {"area_noise": 0.001}}).notes[-1]
    assert "2 of 2 groups points see 1408 to 1440 samples, further apart than area_noise, 0.001" in apart


@pytest.mark.parametrize(
    ("study", "told"),
    [
        ({"budget": {"steps": 1}}, "1 of 1 runs take 1 step: a curve of one point has no loss area"),
        ({"budget": {"samples_seen": 16}, "grid": {"batch_size": [8, 16]}}, "1 of 2 runs take 1 step"),
        ({"rules": {"loss_window": 11, "loss_threshold": 1}}, "1 of 1 runs take fewer steps than loss_window, 11"),
        ({"rules": {"learning_rate_warm_up_steps": 11}}, "1 of 1 runs end before learning_rate_warm_up_steps"),
        ({"rules": {"learning_rate_warm_up_steps": 10, "loss_window": 10, "loss_threshold": 1}}, None),
        ({"budget": {"seconds": 1}, "rules": {"loss_window": 10, "loss_threshold": 1}}, None),
        ({"rules": {"loss_threshold": -1}}, "loss_threshold: given -1, but no loss is below 0: no run can win"),
    ],
)
def test_a_budget_too_short_to_be_judged_is_told(tmp_path, study, told):
    notes = expand(tmp_path, study).notes
    assert told in notes[0] if told else not notes


HALF = {"seed": list(range(300)), "learning_rate": [0.01 * n for n in range(1, 201)]}  # 60,000 points


@pytest.mark.parametrize(
    ("study", "told"),
    [
        ({"grid": [HALF, HALF]}, "grid: given 120,000 points, expected: at most 100,000; take values out"),
        ({"grid": HALF, "repeats": 2}, "grid: given 120,000 runs, expected: at most 100,000; fewer repeats"),
        (
            {"grid": HALF | {"exclude": [{"seed": n} for n in range(40)]}},
            "given 2,400,000 points x values of exclude and when, expected: at most 1,000,000; axes without",
        ),
        ({"grid": HALF | {"when": {"seed": list(range(40))}}}, "given 2,400,000 points x values"),
    ],
)
def test_what_would_keep_the_planner_busy_for_minutes_is_refused_before(tmp_path, monkeypatch, study, told):
    """No spec is made before."""
    monkeypatch.setattr(grid.RunSpec, "model_validate", None)
    with pytest.raises(grid.StudyError, match=told):
        expand(tmp_path, study)


def test_filters_and_repeats_count_together(tmp_path):
    """Half a million runs without the filter; of many patterns that fit nothing the first are named."""
    few = {"when": {"seed": 1, "learning_rate": 0.01}, "exclude": [{"batch_size": n} for n in range(20, 29)]}
    found = expand(tmp_path, {"grid": {name: values[:20] for name, values in HALF.items()} | few, "repeats": 1000})
    assert len(found.specs) == 1000
    assert len(found.notes) == 7
    assert found.notes[-1] == "... and 3 more fit no point"


def test_512_on_7_ranks_is_refused_not_rounded(tmp_path):
    study = {"budget": {"samples_seen": 307_200}, "grid": {"world_size": 7, "batch_size": 512}}
    with pytest.raises(
        grid.StudyError, match=r"samples_seen=307200 is no multiple .* 3584; expected: .* 304640 or 308224"
    ):
        expand(tmp_path, study)


def test_the_time_to_expand_a_grid_grows_as_its_points_do(tmp_path):
    """In CPU time, the least of three: other work is not ours. A look at all others for each point takes 100 times."""
    few, many = (min(_seconds(tmp_path, rates) for _ in range(3)) for rates in (10, 100))
    assert many < 25 * few


def _seconds(folder: Path, rates: int) -> float:
    study = {"grid": {"seed": list(range(100)), "learning_rate": [n / 1000 for n in range(1, rates + 1)]}}
    start = time.process_time()
    assert len(expand(folder, study).specs) == 100 * rates
    return time.process_time() - start


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        (
            {"optimizer": ["sgd", "adam"], "momentum": [0.9]},
            [
                "zip: {optimizer: [sgd, adam], momentum: [0.9, 0]}",
                "e.g. at world_size=1, batch_size=8, optimizer=adam, momentum=0.9",
            ],
        ),
        (
            {"exchange": ["none", "ring"], "world_size": [1, 2]},
            ["exclude: {exchange: none, world_size: [2, ...]}", "e.g. at exchange=none, world_size=2, batch_size=8"],
        ),
        (
            {"sampling": "partitioned", "world_size": 2000},
            ["dataset 'digits' has 1437", "sampling=partitioned with world_size=2000"],
        ),
    ],
)
def test_fields_that_do_not_go_together_are_told_with_the_remedy_and_a_point(tmp_path, axes, told):
    with pytest.raises(grid.StudyError) as error:
        expand(tmp_path, {"grid": axes | {"exclude": {"batch_size": 99}}})
    for part in [*told, "exclude: {batch_size: 99} fits no point"]:
        assert part in str(error.value)
