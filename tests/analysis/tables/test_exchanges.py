"""Exchanges side by side: ratios within a round, what is compared with what, and what the figure shows of it."""

import itertools

import numpy as np
import pytest
from drawn import draw, words
from factory import Result, made_up, planned
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ddp_hpc.analysis.figures import picture
from ddp_hpc.analysis.figures._marks import OVERSUBSCRIBED, RING, SLOW
from ddp_hpc.analysis.tables import exchanges
from ddp_hpc.config.study import Study

STEPS = 50
BASE = {"dataset": "digits", "model": "mlp", "learning_rate": 0.1, "batch_size": 75, "threads_per_rank": 1}
GRID = [
    {"exchange": "none", "world_size": 1},
    {"exchange": ["mpi_allreduce", "ring"], "world_size": [1, 2]},
]
# seconds per step, by exchange and ranks; every round is slower than the one before, by this factor
SECONDS = {
    ("none", 1): 1e-3,
    ("mpi_allreduce", 1): 1.2e-3,
    ("mpi_allreduce", 2): 6e-3,
    ("ring", 1): 1.25e-3,
    ("ring", 2): 2e-3,
}
ROUNDS = (1, 3, 10)


def took(spec, seconds, **columns):
    return Result(t_s=tuple(seconds * np.arange(1, STEPS + 1)), loss=(0.1,) * STEPS, columns=columns)


def in_rounds(spec):
    return took(spec, SECONDS[spec.exchange.name, spec.world_size] * ROUNDS[spec.seed])


def made(folder, train=in_rounds, **keys):
    study = {"base": BASE, "grid": GRID, "repeats": 3, "budget": {"steps": STEPS}}
    return made_up(folder, train, **(study | {"rules": {"reference_exchange": "mpi_allreduce"}} | keys))


def one(frame, exchange, world_size):
    (row,) = frame[(frame["exchange"] == exchange) & (frame["world_size"] == world_size)].to_dict("records")
    return row


def test_a_machine_that_slows_down_tenfold_changes_no_ratio(tmp_path):
    row = one(exchanges.build(made(tmp_path)), "ring", 2)

    assert (row["step_us"], row["step_least_us"], row["step_largest_us"]) == pytest.approx((6000, 2000, 20000))
    assert (row["times_as_fast"], row["times_as_fast_least"], row["times_as_fast_largest"]) == pytest.approx((3, 3, 3))
    assert (row["runs"], row["pairs"], row["reference"]) == (3, 3, "mpi_allreduce")
    assert row["samples_per_s"] == pytest.approx(2 * 75 / 6e-3)


def test_all_steps_count_where_ranks_take_different_numbers_of_them(tmp_path):
    """A budget in seconds: one rank takes 50 steps while the other takes 150, so 100 global batches are done."""

    def train(spec):
        alone = spec.exchange.name == "hogwild"
        return took(spec, 2e-3, **({"samples_seen": (50 + 150) * 75} if alone else {}))

    grid = [{"exchange": ["mpi_allreduce", "hogwild"], "world_size": 2}]
    row = one(exchanges.build(made(tmp_path, train, grid=grid)), "hogwild", 2)

    assert row["step_us"] == pytest.approx(1000)
    assert row["times_as_fast"] == pytest.approx(2)


def test_the_median_ratio_is_not_the_ratio_of_the_medians(tmp_path):
    def train(spec):
        slow = {("mpi_allreduce", 0): 4, ("mpi_allreduce", 1): 9, ("mpi_allreduce", 2): 5, ("ring", 1): 2}
        return took(spec, 1e-3 * slow.get((spec.exchange.name, spec.seed), 1))

    row = one(exchanges.build(made(tmp_path, train)), "ring", 2)

    assert (row["times_as_fast"], row["times_as_fast_least"], row["times_as_fast_largest"]) == pytest.approx(
        (4.5, 4, 5)
    )


def test_weak_scaling_efficiency_is_against_one_rank_without_exchange_and_the_same_batch(tmp_path):
    frame = exchanges.build(made(tmp_path))

    assert one(frame, "ring", 2)["weak_efficiency"] == pytest.approx(0.5)
    assert one(frame, "ring", 1)["weak_efficiency"] == pytest.approx(0.8)
    assert one(frame, "none", 1)["weak_efficiency"] == pytest.approx(1)
    alone = exchanges.build(made(tmp_path / "b", grid=GRID[1:]))
    assert alone["weak_efficiency"].isna().all()


def test_evaluations_between_steps_make_no_other_reference_and_no_other_baseline(tmp_path):
    evaluated = {"exchange": "ring", "world_size": 2, "evaluate_every_steps": 5}
    frame = exchanges.build(made(tmp_path, grid=[GRID[0], GRID[1] | {"exchange": "mpi_allreduce"}, evaluated]))

    assert one(frame, "ring", 2)["times_as_fast"] == pytest.approx(3)
    assert one(frame, "ring", 2)["weak_efficiency"] == pytest.approx(0.5)


def test_without_the_reference_there_is_no_ratio_but_a_reason(tmp_path):
    def without(spec):
        return Result("crashed", "boom") if spec.exchange.name == "mpi_allreduce" else in_rounds(spec)

    failed = one(exchanges.build(made(tmp_path / "a", without)), "ring", 2)
    absent = one(exchanges.build(made(tmp_path / "b", rules={})), "ring", 2)

    assert np.isnan(failed["times_as_fast"])
    assert failed["reason"] == "nothing to compare with: mpi_allreduce is crashed"
    assert np.isnan(absent["times_as_fast"])
    assert absent["reason"].startswith("nothing to compare with: exchange torch_ddp is not planned here")
    assert "reference_exchange" in absent["reason"]
    assert absent["step_us"] == pytest.approx(6000)  # the times are there all the same


def test_a_reference_that_is_planned_elsewhere_is_said_to_lack_here(tmp_path):
    grid = [GRID[0], GRID[1] | {"world_size": 2}, {"exchange": "ring", "world_size": 2, "batch_size": 150}]
    frame = exchanges.build(made(tmp_path, grid=grid))
    (other,) = frame[frame["batch_size"] == 150].to_dict("records")

    said = "nothing to compare with: exchange mpi_allreduce is planned, but not"
    assert one(frame, "none", 1)["reason"] == f"{said} with 1 rank"
    assert other["reason"] == f"{said} with all else as here"
    assert np.isnan(other["times_as_fast"])


def test_a_round_without_its_reference_does_not_count(tmp_path):
    def train(spec):
        gone = spec.exchange.name == "mpi_allreduce" and spec.seed == 2
        return Result("missing") if gone else in_rounds(spec)

    frame = exchanges.build(made(tmp_path, train))

    assert (one(frame, "ring", 2)["pairs"], one(frame, "ring", 2)["reason"]) == (2, "only 2 of 3 rounds")
    assert one(frame, "mpi_allreduce", 2)["runs"] == 2


def test_what_a_disturbed_run_is_compared_with_is_told(tmp_path):
    """The baseline took 2.5 times as long as its median steps, and lacks a round: others look the better for it."""

    def train(spec):
        result = in_rounds(spec)
        alone = spec.exchange.name == "none"
        return (
            Result("missing")
            if alone and spec.seed == 2
            else took(spec, result.t_s[0], **({"step_s": 0.4 * result.t_s[0]} if alone else {}))
        )

    row = one(exchanges.build(made(tmp_path, train)), "ring", 2)

    assert (row["slow_steps_share"], row["others_slow_steps_share"]) == pytest.approx((0, 0.6))
    assert row["reason"] == "weak efficiency of only 2 of 3 rounds"


def test_the_learning_rate_changes_no_work_but_pairs_keep_it(tmp_path):
    def train(spec):
        return took(spec, SECONDS[spec.exchange.name, spec.world_size] * (7 if spec.learning_rate == 0.5 else 1))

    study_runs = made(
        tmp_path, train, base=BASE | {"learning_rate": 0.1}, grid=[g | {"learning_rate": [0.1, 0.5]} for g in GRID]
    )
    row = one(exchanges.build(study_runs), "ring", 2)

    assert (row["runs"], row["pairs"], row["times_as_fast_least"]) == (6, 6, pytest.approx(3))


def test_a_failed_exchange_is_a_row_without_numbers(tmp_path):
    def train(spec):
        return Result("diverged", "nan", (0.1,), (np.nan,)) if spec.exchange.name == "ring" else in_rounds(spec)

    row = one(exchanges.build(made(tmp_path, train)), "ring", 2)

    assert (row["runs"], row["reason"], np.isnan(row["step_us"])) == (0, "not complete: diverged", True)


def figure_of(study_runs):
    return draw((study_runs, {"exchanges": exchanges.build(study_runs)}), "exchange_speed", "")


def test_each_panel_has_a_bar_per_exchange_the_fastest_on_top_with_its_ratio(tmp_path):
    figure = figure_of(made(tmp_path))
    two = next(axes for axes in figure.axes if "2\u00a0ranks" in axes.get_title())

    assert [label.get_text() for label in two.get_yticklabels()] == ["ring", "mpi_allreduce"]
    assert [bar.get_width() for bar in two.patches] == pytest.approx([6.0, 18.0])  # ms
    assert "6   3.00\u00d7 (3.00\u20133.00)" in words(figure)
    assert "18   the reference" in words(figure)
    assert two.get_ylim()[0] > two.get_ylim()[1]


def test_the_line_stands_at_the_reference_and_not_at_the_same_exchange_with_other_options(tmp_path):
    tuned = {"name": "mpi_allreduce", "bucket_mb": 1}
    grid = [{"exchange": ["mpi_allreduce", tuned], "world_size": 2}]

    def train(spec):
        return took(spec, 3e-3 if spec.exchange.options else 6e-3)

    (axes,) = figure_of(made(tmp_path, train, grid=grid)).axes
    lines = [line.get_xdata() for line in axes.lines if line.get_linestyle() == "--"]
    assert lines == [pytest.approx([6.0, 6.0])]  # ms


def test_what_is_not_to_be_trusted_is_hollow_or_ringed(tmp_path):
    def train(spec):
        result = in_rounds(spec)
        columns = {"oversubscribed": spec.world_size == 2}
        columns |= {"step_s": 0.1 * result.t_s[0]} if spec.exchange.name == "none" else {}
        return took(spec, result.t_s[0], **columns)

    figure = figure_of(made(tmp_path, train))
    faces = {axes.get_title(): {bar.get_facecolor() for bar in axes.patches} for axes in figure.axes}
    white = {(1.0, 1.0, 1.0, 1.0)}

    assert [title for title in faces if faces[title] == white] == [title for title in faces if "2\u00a0ranks" in title]
    rings = [line for line in itertools.chain(*(axes.lines for axes in figure.axes)) if line.get_marker() == "o"]
    assert [line.get_markersize() for line in rings] == [RING["markersize"]]
    assert OVERSUBSCRIBED in words(figure)
    assert SLOW in words(figure).replace("\n", " ")


def test_one_slow_round_does_not_stretch_the_axis(tmp_path):
    def train(spec):
        return took(spec, 1e-3 * (80 if (spec.exchange.name, spec.seed) == ("ring", 2) else 2 + spec.seed))

    figure = figure_of(made(tmp_path, train))

    assert max(axes.get_xlim()[1] for axes in figure.axes) < 10  # ms
    assert "beyond the axis" in words(figure)
    assert "beyond the axis" not in words(figure_of(made(tmp_path / "b", lambda spec: took(spec, 2e-3))))


def test_what_stands_beside_the_bars_is_not_cut_in_a_column(tmp_path):
    study_runs = made(tmp_path)
    figure = picture("exchange_speed", study_runs.study, {"exchanges": exchanges.build(study_runs)}, "", "column")

    FigureCanvasAgg(figure).draw()
    ends = [text.get_window_extent().x1 for axes in figure.axes for text in axes.texts]
    assert 0.9 * figure.bbox.x1 < max(ends) < figure.bbox.x1


def study(**keys):
    return Study.model_validate({"name": "x"} | keys)


@pytest.mark.parametrize(
    ("keys", "several"),
    [
        ({"base": {"exchange": "ring"}}, False),
        ({"grid": GRID[0]}, False),
        (
            {"grid": [GRID[0], {"exchange": "ring", "world_size": [1, 2]}, {"exchange": ["ring"], "world_size": 8}]},
            False,
        ),
        ({"grid": GRID}, True),
        ({"grid": [{"exchange": "ring"}, {"zip": {"exchange": ["mpi_allreduce"], "seed": [1]}}]}, True),
        ({"grid": {"exchange": ["ring", {"name": "ring", "any": 1}]}}, True),
        ({"base": {"exchange": "ring"}, "grid": {"exchange.any": [1, 2]}}, True),
    ],
)
def test_exchanges_are_compared_by_default_where_there_are_several(keys, several):
    assert ("exchanges" in study(**keys).table_names) == several
    assert ("exchange_speed" in study(**keys).figure_names) == several


def test_a_study_may_ask_for_the_comparison_anyway():
    asked = study(base={"exchange": "ring"}, tables=["exchanges"], figures=["exchange_speed"])
    assert (asked.table_names, asked.figure_names) == (["exchanges"], ["exchange_speed"])


def test_a_reference_that_does_not_exist_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"reference_exchange: no exchange 'rin' \(did you mean 'ring'\?\)"):
        planned(tmp_path, rules={"reference_exchange": "rin"})


def test_a_single_round_is_as_sure_as_rounds_elsewhere_are_alike_and_says_so(tmp_path):
    """Rounds differ tenfold with two ranks; with four only one has ended, within which all steps are alike."""

    def train(spec):
        rng = np.random.default_rng([spec.seed, spec.world_size, len(spec.exchange.name)])
        if spec.world_size == 4 and spec.seed:
            return Result("missing")
        return took(spec, 1e-3 * np.exp(0.5 * rng.normal()))

    grid = [{"exchange": ["mpi_allreduce", "ring"], "world_size": [2, 4]}]
    frame = exchanges.build(made(tmp_path, train, grid=grid, repeats=8))
    alone, rounds = one(frame, "ring", 4), one(frame, "ring", 2)

    assert alone["times_as_fast_from"] == "1 run, 7 degrees of freedom from what does equal work"
    assert rounds["times_as_fast_from"] == "8 runs"
    widths = [np.log(row["times_as_fast_high"] / row["times_as_fast_low"]) for row in (alone, rounds)]
    assert widths[0] > 2 * widths[1]
    assert one(frame, "mpi_allreduce", 2)["times_as_fast_low"] == 1


def test_a_reference_on_another_kind_of_device_makes_no_exchange_faster(tmp_path):
    def train(spec):
        device = "cpu" if spec.exchange.name == "mpi_allreduce" else "cuda"
        return took(spec, 1e-3, device_used=device)

    row = one(exchanges.build(made(tmp_path, train)), "ring", 2)

    assert np.isnan(row["times_as_fast"])
    assert row["reason"] == "nothing to compare with: mpi_allreduce is on cpu, not on cuda as this"


def test_the_figure_says_which_exchanges_compute_something_else(tmp_path):
    """On one rank all compute the same."""
    compressed = {"name": "mpi_allreduce", "compression": "float16"}
    others = ["mpi_allreduce", "ring", "async_server", {"name": "weight_average", "period": 10}, compressed]
    grids = {"some": [{"exchange": others, "world_size": 2}], "same": [{"exchange": others[:2], "world_size": 2}]}
    grids["alone"] = [{"exchange": others[:4], "world_size": 1}]
    told = {}
    for name, grid in grids.items():
        study_runs = made(tmp_path / name, lambda spec: took(spec, 1e-3), grid=grid)
        figure = draw((study_runs, {"exchanges": exchanges.build(study_runs)}), "exchange_speed", "")
        told[name] = words(figure).partition("Not all compute the same, so compare losses, too: ")[2]

    assert told["same"] == told["alone"] == ""
    assert told["some"].startswith("async_server (asynchronous: ")
    assert "; weight_average (need not train like one rank on all samples); " in told["some"]
    assert "mpi_allreduce (compression float16) (compressed gradients)." in told["some"]
    assert "ring" not in told["some"]
