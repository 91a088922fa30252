"""The published 'sudden rise of usage without speedup', made up: busy rises, power and MFU fall, waiting grows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from drawn import words
from factory import made_up, realistic
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ddp_hpc.analysis.figures import utilisation as figure
from ddp_hpc.analysis.figures._style import style
from ddp_hpc.analysis.tables import utilisation
from ddp_hpc.profiling.phase_names import PHASES
from ddp_hpc.runs import records

RANKS = [1, 2, 4, 8]
GRID = [
    {"exchange": "none", "world_size": 1, "batch_size": 32, "learning_rate": [0.1, 0.5]},
    {"exchange": ["nccl", "ring"], "world_size": RANKS, "batch_size": 32, "learning_rate": [0.1, 0.5]},
]
BASE = {"dataset": "digits", "model": "mlp", "threads_per_rank": 1, "device": "cuda"}
BUSY = {"nccl": {1: 0.4, 2: 0.45, 4: 0.97, 8: 0.98}, "ring": {1: 0.4, 2: 0.38, 4: 0.35, 8: 0.33}, "none": {1: 0.41}}


def on_gpus(spec):
    """A run on as many GPUs; the first step takes half of the time, and of the loss."""
    result, n = realistic(spec), spec.world_size
    steps_s = dict.fromkeys(PHASES, 0.01) | {"exchange_exposed_s": 0.06 * (n - 1) / n}
    t_s = tuple(np.linspace(1.0, 10.0, len(result.t_s)))
    loss = tuple(np.linspace(1.0, 0.1, len(result.t_s)))
    power_w = 300 - 10 * n - 100 * (spec.learning_rate == 0.1)
    columns = steps_s | {
        "gpus": n,
        "gpu_utilisation_mean": BUSY[spec.exchange.name][n],
        "power_mean_w": power_w,
        "sm_clock_mean_mhz": 1980.0 - 10 * n,
        "throttled_share": 0.0,
        "energy_j": 10.0 * power_w * n,
        "energy_method": "counter",
        "energy_per_sample_j": 10.0 * power_w * n / 25600,
        "samples_seen": 25600,
        "samples_per_s": 2560.0,
        "mfu": 0.004 / n,
    }
    return replace(result, status="ok", reason=None, t_s=t_s, loss=loss, columns=columns)


@pytest.fixture(scope="module")
def study_runs(tmp_path_factory):
    made = made_up(tmp_path_factory.mktemp("gpus"), on_gpus, base=BASE, grid=GRID, rules={"loss_threshold": 0.55})
    for planned in made.planned:
        file, spec = made.store.file(planned.run, "gpu"), planned.spec
        if spec.world_size == 8:
            continue  # its samples have been lost
        power_w = 300 - 10 * spec.world_size - 100 * (spec.learning_rate == 0.1)
        t_s = np.arange(-1, 12.0)
        one = {
            "t_s": t_s,
            "trained_s": np.where((t_s < 0) | (t_s > 10), np.nan, t_s),
            "energy_j": np.clip(t_s, 0, 10) * power_w,
        }
        frame = pd.concat([pd.DataFrame(one | {"uuid": f"GPU-{number}"}) for number in range(spec.world_size)])
        records.write("gpu", {name: frame[name].to_numpy() for name in frame}, file)
    return made


def row(frame, exchange, world_size):
    (found,) = frame[(frame["exchange"] == exchange) & (frame["world_size"] == world_size)].to_dict("records")
    return found


def test_usage_power_mfu_exchange_and_joules_stand_side_by_side(study_runs):
    frame = utilisation.build(study_runs)
    assert len(frame) == 9
    four = row(frame, "nccl", 4)
    assert (four["runs"], four["gpus"], four["gpu_utilisation_mean"]) == (2, 4, 0.97)
    assert four["power_mean_w"] == pytest.approx(260 - 50)  # the median of 260 W and 160 W
    assert four["mfu"] == pytest.approx(0.001)
    assert four["samples_per_s_per_rank"] == pytest.approx(640)
    assert four["exchange_share"] == pytest.approx(0.045 / (0.06 + 0.045))
    assert four["energy_per_sample_j"] == pytest.approx(10 * 210 * 4 / 25600)
    assert four["energy_method"] == "counter"


def test_joules_to_the_target_are_those_of_all_gpus_of_the_best_run_up_to_the_threshold(study_runs):
    frame = utilisation.build(study_runs)
    run = next(planned for planned in study_runs.planned if planned.spec.world_size == 2)
    steps = study_runs.steps(run.run)
    reached_s = steps[~steps["warm_up"] & (steps["loss"] <= 0.55)]["t_s"].min()
    assert reached_s == pytest.approx(5.5, rel=0.05)
    assert row(frame, "ring", 2)["energy_to_target_j"] == pytest.approx(2 * reached_s * (300 - 20 - 100))
    assert np.isnan(row(frame, "ring", 8)["energy_to_target_j"])


def test_without_a_threshold_or_beyond_it_there_are_no_joules_to_the_target(tmp_path):
    for threshold in (None, 0.001):
        made = made_up(
            tmp_path / str(threshold), on_gpus, base=BASE, grid=GRID[:1], rules={"loss_threshold": threshold}
        )
        assert utilisation.build(made)["energy_to_target_j"].isna().all()


def test_cpu_runs_say_why_there_is_nothing(tmp_path):
    reasons = {"gpu_utilisation_mean": "no GPU is used", "energy_j": "no GPU is used", "mfu": "no GPU is used"}

    def train(spec):
        return replace(realistic(spec), status="ok", provenance={"null_columns": reasons})

    frame = utilisation.build(made_up(tmp_path, train, grid=[{"exchange": "none", "world_size": 1, "batch_size": 8}],
                                      base=BASE | {"learning_rate": 0.1}))  # fmt: skip
    (one,) = frame.to_dict("records")
    assert one["reason"] == "gpu_utilisation_mean, energy_j, mfu: no GPU is used"
    assert np.isnan(one["gpu_utilisation_mean"])


def test_the_table_and_the_figure_are_made_by_default_where_gpus_are_asked_for(study_runs, tmp_path):
    assert "utilisation" in study_runs.study.table_names
    assert "utilisation" in study_runs.study.figure_names
    plain = made_up(tmp_path, realistic).study
    assert "utilisation" not in [*plain.table_names, *plain.figure_names]


def test_what_is_not_known_of_any_run_has_no_panel_and_the_caption_says_why(study_runs):
    frame = utilisation.build(study_runs)
    unknown = frame.assign(mfu=np.nan, reason="mfu: the peak of this GPU is not known")
    with style():
        drawn, less = (figure.draw({"utilisation": one}, study_runs.study, "") for one in (frame, unknown))

    assert len(drawn.axes) - len(less.axes) == 1
    assert "MFU: of the peak" not in words(less).partition("Not known is")[0]
    assert "Not known is MFU: of the peak FLOP/s (%): the peak of this GPU is not known." in less.get_label()


def test_the_figure_shows_what_the_table_says(study_runs):
    frame = utilisation.build(study_runs)
    with style():
        drawn = figure.draw({"utilisation": frame}, study_runs.study, study_runs.coverage())
        FigureCanvasAgg(drawn)
        drawn.draw_without_rendering()
    busy, power, *_ = drawn.axes
    curves = [line for line in busy.lines if len(line.get_xdata()) == 4]
    assert [list(line.get_ydata()) for line in curves] == [
        pytest.approx([100 * BUSY[name][n] for n in RANKS]) for name in ("nccl", "ring")
    ]
    assert power.get_ylim()[0] == 0
    assert "Busy counts kernels that wait" in words(drawn)
