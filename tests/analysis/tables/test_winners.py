"""Who wins: complete, below the threshold, a core for every thread, least loss area; and who is left out, and why."""

import dataclasses
import json

import factory
import numpy as np
import pandas as pd
import pytest
from drawn import words
from factory import Result, constant, made_up
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_hpc.analysis.figures import heat_map, loss_areas
from ddp_hpc.analysis.figures._style import style
from ddp_hpc.analysis.formatting import in_words
from ddp_hpc.analysis.report.provenance import of_runs
from ddp_hpc.analysis.report.warnings import flags
from ddp_hpc.analysis.tables import areas, runs, time_to_metric, winners
from ddp_hpc.analysis.tables._winner_selection import NO_WINNER, exclusions, pick_winners, points
from ddp_hpc.config import catalog
from ddp_hpc.config.study import StudyError
from ddp_hpc.runs import records

ONE_GROUP = [{"exchange": "ring", "world_size": 2, "batch_size": [16, 32, 64], "learning_rate": 0.1}]


def build(folder, by_batch, **keys):
    """Return the one row of winners of a study whose run of each batch size ended as given."""
    study_runs = made_up(folder, lambda spec: by_batch[spec.batch_size], **({"grid": ONE_GROUP} | keys))
    (row,) = winners.build(study_runs).to_dict("records")
    return row


def test_the_least_area_wins(tmp_path):
    row = build(tmp_path, {16: constant(5.0, 800), 32: constant(4.0, 400), 64: constant(4.4, 200)})

    assert (row["winner"], row["batch_size"], row["loss_area_loss_s"]) == ("batch size 32", 32, 4.0)
    assert row["second"] == "batch size 64"
    assert row["margin_percent"] == pytest.approx(10)


@pytest.mark.parametrize(
    ("spoiled", "because"),
    [
        (Result("diverged", "loss is nan at step 3 (rank 0)", (1.0, 2.0), (0.1, np.nan)), "1 diverged"),
        (Result("oom_gpu", "out of memory", (1.0,), (0.1,)), "1 oom gpu"),
        (Result("crashed", "rank 1: ValueError"), "1 crashed"),
        (Result("missing"), "1 not yet run"),
        (constant(0.1, samples_seen=800), "1 incomplete"),  # truncated: the least area of all
        (constant(0.1, samples_seen=None), "1 incomplete"),
        (constant(0.0), "1 without a loss area"),  # stored as zero
        (constant(0.1, loss_area_loss_s=None), "1 without a loss area"),
        (constant(0.1, loss_area_loss_s=float("inf")), "1 without a loss area"),
        (constant(0.1, min_loss=0.500001), "1 above threshold"),
        (constant(0.1, min_loss=None), "1 shorter than the loss window"),
        (constant(0.1, oversubscribed=True), "1 oversubscribed"),
        (constant(0.1, test_metric_name="error", test_metric=np.nan), "1 test metric not finite"),
    ],
)
def test_a_spoiled_run_never_wins_however_small_its_area(tmp_path, spoiled, because):
    steps = 800  # 25,600 samples in global batches of 32
    row = build(tmp_path, {16: _padded(spoiled, steps), 32: constant(5.0, 400), 64: constant(6.0, 200)})

    assert row["winner"] == "batch size 32"
    assert (row["points"], row["eligible_points"], row["excluded_points"]) == (3, 2, 1)
    assert row["excluded_because"] == because


def _padded(result, steps):
    """Give a made-up run the steps its budget asks for, unless it says how many samples it saw."""
    if result.status != "ok" or "samples_seen" in result.columns:
        return result
    return dataclasses.replace(result, columns={"samples_seen": steps * 32} | dict(result.columns))


def test_the_threshold_is_inclusive(tmp_path):
    at, beyond = constant(1.0, 800, min_loss=0.5), constant(2.0, 400)

    assert build(tmp_path, {16: at, 32: beyond, 64: beyond})["winner"] == "batch size 16"


def test_without_a_threshold_any_complete_run_may_win(tmp_path):
    by_batch = {16: constant(1.0, 800, min_loss=9.0), 32: constant(2.0, 400), 64: constant(3.0, 200)}

    assert build(tmp_path, by_batch, rules={})["winner"] == "batch size 16"


def test_a_run_by_the_clock_has_no_number_of_samples_to_miss(tmp_path):
    by_batch = {16: constant(3.0, 7), 32: constant(2.0, 9), 64: constant(4.0, 11)}

    assert build(tmp_path, by_batch, budget={"seconds": 5.0})["winner"] == "batch size 32"


def test_points_that_see_different_numbers_of_samples_are_not_compared(tmp_path):
    """Of two curves the shorter has the smaller area, however poor its end."""
    row = build(tmp_path, {16: constant(1.0), 32: constant(4.0), 64: constant(4.4)}, budget={"steps": 100})

    assert row["winner"] == NO_WINNER
    assert row["judged_by"].startswith("not comparable: the points see 3200 to 12800 samples; give samples_seen")


def test_time_lost_in_slow_steps_is_a_column_and_a_warning(tmp_path):
    def train(spec):
        return constant(5.0, 400, step_s=0.01, train_s=4.0 if spec.batch_size == 16 else 10.0)

    study_runs = made_up(tmp_path, train, grid=ONE_GROUP)

    assert list(runs.build(study_runs)["slow_steps_share"].round(3)) == [0.0, 0.6, 0.6]
    (warning,) = [text for text in flags(study_runs, {}, of_runs(study_runs)) if "slower than the median" in text]
    assert warning.startswith("In 2 of 3 runs more than a third of the training time went to steps slower")


def test_cores_that_others_use_are_a_warning_where_threads_waited_and_not_of_ranks_that_are_too_many(tmp_path):
    shares = {16: (0.3, 0.01), 32: (0.02, 0.4), 64: (0.3, 0.25), 128: (0.6, 0.5)}  # waited; used by others

    def train(spec):
        waited, taken = shares[spec.batch_size]
        columns = {"core_wait_share": waited, "others_core_share": taken, "oversubscribed": spec.batch_size == 128}
        columns["other_trainings"] = 2 if spec.batch_size == 16 else 0
        return dataclasses.replace(constant(5.0, 400), columns=columns)

    study_runs = made_up(tmp_path, train, grid=[ONE_GROUP[0] | {"batch_size": list(shares)}])
    (beside,) = [text for text in flags(study_runs, {}, of_runs(study_runs)) if "other_trainings" in text]
    assert beside.startswith("On a node of 1 of 4 runs other trainings of ddp-hpc ran, too, up to 2")

    (warning,) = [text for text in flags(study_runs, {}, of_runs(study_runs)) if "core_wait_share" in text]
    assert warning.startswith("In 1 of 4 runs threads were ready and had no core in over 5 % of the time")
    assert "used up to 25 % of their cores" in warning


def test_all_diverged_is_no_winner(tmp_path):
    study_runs = made_up(tmp_path, lambda spec: Result("diverged", "loss is inf", (1.0,), (np.inf,)))
    table = winners.build(study_runs)

    assert set(table["winner"]) == {NO_WINNER}
    assert table["loss_area_loss_s"].isna().all()
    assert set(table["excluded_because"]) == {"9 diverged"}


def test_nothing_run_yet_is_no_winner_and_no_exception(tmp_path):
    table = winners.build(factory.planned(tmp_path))

    assert set(table["winner"]) == {NO_WINNER}
    assert set(table["excluded_because"]) == {"9 not yet run"}


def test_the_minimum_loss_is_over_the_window(tmp_path):
    """One lucky step below the threshold is no proof where five in a row are asked for."""
    lucky = [0.9] * 800
    lucky[400] = 0.01
    t_s = tuple(np.linspace(1, 2, 800))
    by_batch = {16: Result(t_s=t_s, loss=tuple(lucky)), 32: constant(5.0, 400), 64: constant(6.0, 200)}

    assert build(tmp_path / "a", by_batch)["winner"] == "batch size 16"
    row = build(tmp_path / "b", by_batch, rules={"loss_threshold": 0.5, "loss_window": 5})
    assert (row["winner"], row["excluded_because"]) == ("batch size 32", "1 above threshold")
    assert row["min_loss"] == pytest.approx(0.1)


def test_equal_areas_cannot_be_told_apart_and_the_first_point_stands(tmp_path):
    row = build(tmp_path, {16: constant(4.0, 800), 32: constant(4.0, 400), 64: constant(4.0, 200)})

    assert (row["winner"], row["margin_percent"]) == ("batch size 16", 0)
    assert row["cannot_be_told_from"] == "batch size 32; batch size 64"
    assert row["cannot_be_told_from_count"] == 2


def repeated(areas_of):
    """Return a trainer whose runs of a batch size have these areas, one per seed."""

    def train(spec):
        given = areas_of[spec.batch_size][spec.seed]
        return given if isinstance(given, Result) else constant(given, spec.steps_asked)

    return train


def test_repeats_are_combined_by_their_median(tmp_path):
    train = repeated({16: [1.0, 5.0, 5.1], 32: [4.0, 4.1, 4.2], 64: [7.0, 7.1, 7.2]})
    (row,) = winners.build(made_up(tmp_path, train, grid=ONE_GROUP, repeats=3)).to_dict("records")

    assert (row["winner"], row["loss_area_loss_s"], row["repeats"]) == ("batch size 32", 4.1, 3)
    # the mean of 16 is even lower, and scatters much; of the others that says nothing
    assert row["cannot_be_told_from"] == "batch size 16"
    assert row["judged_by"] == "3 repeats, 2 degrees of freedom"


def test_a_point_is_out_if_any_repeat_is(tmp_path):
    diverged = Result("diverged", "loss is nan", (1.0,), (np.nan,))
    train = repeated({16: [1.0, 1.0, diverged], 32: [4.0, 4.1, 4.2], 64: [diverged] * 3})
    (row,) = winners.build(made_up(tmp_path, train, grid=ONE_GROUP, repeats=3)).to_dict("records")

    assert row["winner"] == "batch size 32"
    assert row["excluded_because"] == "1 with 1 of 3 repeats diverged, 1 diverged"
    assert (row["runs"], row["excluded_runs"]) == (9, 6)


def test_null_is_a_value_of_an_axis_like_any_other(tmp_path):
    """A nullable field in the grid splits the groups; neither a group nor a run is lost."""
    grid = [ONE_GROUP[0] | {"threads_per_rank": [None, 2], "evaluate_every_steps": [None, 10]}]
    study_runs = made_up(tmp_path, base={"dataset": "digits", "model": "mlp"}, grid=grid)
    table = winners.build(study_runs)

    assert len(table) == 4
    assert table["threads_per_rank"].isna().sum() == 2
    assert table["runs"].sum() == len(study_runs.planned) == 12
    assert len(areas.build(study_runs)) == 12


def test_how_often_it_is_evaluated_keeps_no_batch_size_from_competing(tmp_path):
    """After as many samples of each: that is off the clock, and no other search."""
    ring = {"exchange": "ring", "learning_rate": 0.1}
    every = {2: [20, 10], 4: [10, 5]}  # steps
    batches = [{"zip": {"batch_size": [16, 32], "evaluate_every_steps": steps}} for steps in every.values()]
    grid = [ring | {"world_size": ranks} | zipped for ranks, zipped in zip(every, batches, strict=True)]
    study_runs = made_up(tmp_path, grid=grid)
    table = winners.build(study_runs)

    assert list(zip(table["world_size"], table["points"], strict=True)) == [(2, 2), (4, 2)]
    assert not {"evaluate_every_steps"} & {*table, *areas.build(study_runs)}


def test_options_of_a_choice_are_an_axis_with_its_name(tmp_path):
    grid = [ONE_GROUP[0] | {"model": ["mlp", {"name": "mlp", "widths": [16]}]}]
    table = winners.build(made_up(tmp_path, base={"dataset": "digits"}, grid=grid))

    assert list(table["model"]) == ["mlp", "mlp"]
    assert set(table["model_options"]) == {"{}", '{"widths":[16]}'}


def test_a_searched_choice_is_named_with_its_options(tmp_path):
    grid = [{"exchange": "ring", "world_size": 2, "batch_size": 16, "learning_rate": 0.5, "model.widths": [[8], [16]]}]
    study_runs = made_up(tmp_path, grid=grid, search=["model"])
    (row,) = winners.build(study_runs).to_dict("records")

    assert row["winner"] in ("mlp (widths 8)", "mlp (widths 16)")
    assert row["points"] == 2


def test_every_planned_run_is_a_row_with_its_reason(tmp_path):
    by_batch = {16: Result("crashed", "rank 1 on n3: ValueError: boom"), 32: Result("missing"), 64: constant(1.0, 200)}
    study_runs = made_up(tmp_path, lambda spec: by_batch[spec.batch_size], grid=ONE_GROUP)
    table = runs.build(study_runs)

    assert list(table["run"]) == [planned.run for planned in study_runs.planned]
    assert list(table["status"]) == ["crashed", "missing", "ok"]
    assert table["reason"][0] == "rank 1 on n3: ValueError: boom"
    assert table.loc[:1, "loss_area_loss_s"].isna().all()  # never a zero
    assert list(table["excluded"].fillna("may win")) == ["crashed", "not yet run", "may win"]


run_rows = st.fixed_dictionaries(
    {
        "world_size": st.sampled_from([1, 2]),
        "batch_size": st.sampled_from([16, 32, 64]),
        "learning_rate": st.sampled_from([0.1, 0.5, 2.0]),
        "status": st.sampled_from(["ok", "ok", "ok", "diverged", "crashed", "missing", "timeout"]),
        "samples_asked": st.sampled_from([100, None]),
        "samples_seen": st.sampled_from([100, 100, 99, 0, None]),
        "min_loss": st.sampled_from([0.1, 1.8, 1.81, None]),
        "loss_area_loss_s": st.sampled_from([1.0, 1.001, 2.0, 0.0, -1.0, float("inf"), None]),
        "oversubscribed": st.sampled_from([False, False, True, None]),
    }
)


def judge(rows):
    frame = pd.DataFrame(rows)
    frame["run"] = frame["run"].astype(str)
    for name, kind in {"samples_asked": "Int64", "samples_seen": "Int64", "oversubscribed": "boolean"}.items():
        frame[name] = frame[name].astype(kind)
    for name in ("min_loss", "loss_area_loss_s"):
        frame[name] = frame[name].astype(float)
    frame["excluded"] = exclusions(frame, 1.8)
    search = ["batch_size", "learning_rate"]
    return pick_winners(points(frame, ["world_size"], search, lambda run: None), ["world_size"], search, 0.01)


@settings(max_examples=80, deadline=None)
@given(st.lists(run_rows, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_only_sound_runs_win_and_their_order_changes_nothing(rows, random):
    rows = [row | {"run": number} for number, row in enumerate(rows)]
    table = judge(rows)
    shuffled = random.sample(rows, len(rows))

    pd.testing.assert_frame_equal(
        judge(shuffled).drop(columns="winner_runs"), table.drop(columns="winner_runs"), check_exact=False
    )
    for winner in table[table["winner"] != NO_WINNER].to_dict("records"):
        for number in winner["winner_runs"].split():
            row = rows[int(number)]
            assert row["status"] == "ok"
            assert not row["oversubscribed"]
            assert row["samples_asked"] in (None, row["samples_seen"])
            assert row["min_loss"] in (0.1, 1.8)
            assert row["loss_area_loss_s"] in (1.0, 1.001, 2.0)
    assert (table["eligible_points"] + table["excluded_points"] == table["points"]).all()


def test_the_standard_error_stands_beside_the_area(tmp_path):
    """Of three repeats: their standard deviation over the root of three."""
    train = repeated({16: [9.0, 9.1, 9.2], 32: [4.0, 4.1, 4.2], 64: [7.0, 7.1, 7.2]})
    study_runs = made_up(tmp_path, train, grid=ONE_GROUP, repeats=3)
    (row,) = winners.build(study_runs).to_dict("records")

    assert row["standard_error_loss_s"] == pytest.approx(0.1 / np.sqrt(3))
    assert list(areas.build(study_runs)["standard_error_loss_s"]) == pytest.approx([0.1 / np.sqrt(3)] * 3)


def test_a_winner_that_has_learnt_nothing_or_had_one_lucky_batch_is_told_in_the_table_and_on_the_page(tmp_path):
    tested = {"test_metric_name": "accuracy", "chance_metric": 0.1}
    lucky = np.full(1600, 2.3)
    lucky[400] = 0.4  # of 16 samples; the threshold is 0.5

    def ended(spec):
        if spec.world_size == 2:
            return constant(4.0, 800, **tested, test_metric=0.9)
        return dataclasses.replace(constant(4.0, 1600, **tested, test_metric=0.088, min_loss=0.4), loss=tuple(lucky))

    study_runs = made_up(
        tmp_path, ended, grid={"exchange": "ring", "world_size": [1, 2], "batch_size": 16, "learning_rate": 0.1}
    )
    table = winners.build(study_runs)
    alone, both = table.to_dict("records")
    assert (alone["winner"], alone["test_metric"], alone["chance_metric"]) == ("16/0.1", 0.088, 0.1)
    assert "at chance: a constant answer has the test metric 0.1" in alone["doubt"]
    assert "above the threshold over 16 steps (least mean 2.18): see loss_window" in alone["doubt"]
    assert both["test_metric"] == 0.9
    assert pd.isna(both["doubt"])
    (told,) = [text for text in flags(study_runs, {"winners": table}, of_runs(study_runs)) if "luck" in text]
    assert told.startswith("In 1 of 2 groups the winner may have won by luck")


def test_a_winner_over_points_on_other_processors_has_a_doubt_where_times_decide(tmp_path):
    def on(gpu, batch, area):
        ranks = [{"rank": rank, "cpu": "a cpu", "gpu": gpu and {"name": gpu}} for rank in range(2)]
        return dataclasses.replace(
            constant(area, 12800 // batch, test_metric=0.9, test_metric_name="accuracy"), provenance={"ranks": ranks}
        )

    mixed = {16: on("H200", 16, 1.0), 32: on("A100", 32, 2.0), 64: on("H200", 64, 3.0)}
    alike = {batch: on(None, batch, batch / 16) for batch in (16, 32, 64)}
    unknown = {batch: constant(batch / 16, 12800 // batch) for batch in (16, 32, 64)}

    assert build(tmp_path / "a", mixed)["doubt"] == "1 other point ran on other processors (A100; it on H200)"
    assert pd.isna(build(tmp_path / "b", alike)["doubt"])
    assert pd.isna(build(tmp_path / "c", unknown)["doubt"])
    by_metric = build(tmp_path / "d", mixed, rules={"loss_threshold": 0.5, "winner_by": "test_metric"})
    assert pd.isna(by_metric["doubt"])


@pytest.mark.parametrize(
    ("name", "metric", "chance", "doubted"),
    [
        ("error", 0.25, 0.25, True),
        ("error", 0.3, 0.25, True),
        ("error", 0.1, 0.25, False),
        ("accuracy", 0.97, 0.97, True),
        ("accuracy", 0.99, 0.97, False),
        ("accuracy", 0.12, 0.1, True),
        ("accuracy", 0.5, None, False),  # a record without it
    ],
)
def test_chance_is_what_a_constant_answer_reaches(tmp_path, name, metric, chance, doubted):
    columns = {"test_metric_name": name, "test_metric": metric, "chance_metric": chance}
    row = build(tmp_path, {16: constant(4.0, 800, **columns)}, grid=ONE_GROUP[0] | {"batch_size": 16})
    assert ("" if pd.isna(row["doubt"]) else row["doubt"]).startswith("at chance") is doubted


@pytest.mark.parametrize(("epochs", "won"), [(20, True), (1, False)])
def test_points_of_a_budget_in_epochs_compete_if_rounding_is_within_the_noise(tmp_path, epochs, won):
    """20 epochs of 1437 samples: 28736 in batches of 32, 28672 in batches of 256. One epoch: 1440 and 1536."""
    grid = ONE_GROUP[0] | {"batch_size": [16, 128]}
    ended = made_up(
        tmp_path,
        lambda spec: constant(4.0 if spec.batch_size == 128 else 5.0, spec.steps_asked),
        grid=grid,
        budget={"epochs": epochs},
    )
    (row,) = winners.build(ended).to_dict("records")
    assert (row["winner"] == "batch size 128") is won
    assert won or "1440 to 1536 samples" in row["judged_by"]


def with_evaluations(folder, curves, name="accuracy", **keys):
    """Return the runs of a study that were evaluated: (seconds, metric) by batch size, one list per seed."""

    def train(spec):
        curve = curves[spec.batch_size][spec.seed]
        columns = {"test_metric_name": name, "test_metric": curve[-1][1], "train_s": curve[-1][0]}
        return constant(5.0 - spec.batch_size / 64, spec.steps_asked, **columns)  # 64 has the least area

    study_runs = made_up(folder, train, **({"grid": ONE_GROUP, "repeats": len(curves[16])} | keys))
    for run in study_runs.planned:
        curve = curves[run.spec.batch_size][run.spec.seed]
        columns = {"step": range(1, len(curve) + 1), "t_s": [t_s for t_s, _ in curve]}
        file = study_runs.store.file(run.run, "evaluations")
        records.write("evaluations", columns | {"metric": [metric for _, metric in curve]}, file)
    return study_runs


@pytest.mark.parametrize(("better", "winner"), [("higher", 16), ("lower", 32)])
def test_a_metric_of_ones_own_decides_where_the_rules_name_it(tmp_path, better, winner):
    """Its values are not those of the accuracy, by which 64 would win."""
    own = {16: 5.0, 32: 3.0, 64: 4.0}

    def train(spec):
        accuracy = {16: 0.8, 32: 0.7, 64: 0.9}[spec.batch_size]
        told = json.dumps({"top5": {"value": own[spec.batch_size], "better": better}})
        columns = {"test_metric_name": "accuracy", "test_metric": accuracy, "own_metrics": told}
        return constant(5.0, spec.steps_asked, **columns)

    _metric(tmp_path, "top5")
    catalog.use_project(tmp_path)
    try:
        base = {"dataset": "digits", "model": "judged", "threads_per_rank": 1}
        rules = {"metric": "top5", "winner_by": "test_metric"}
        study_runs = made_up(tmp_path, train, grid=ONE_GROUP, base=base, rules=rules)
        for run in study_runs.planned:
            at = {"step": [1, 2], "t_s": [1.0, 2.0], "metric": [0.1, 0.2]}
            text = [json.dumps({"top5": own[run.spec.batch_size] + change}) for change in (-1, 1)]
            records.write("evaluations", at | {"own_metrics": text}, study_runs.store.file(run.run, "evaluations"))
        row = won(study_runs)
        times = time_to_metric.build(study_runs).set_index("batch_size")
        with pytest.raises(StudyError, match=r"metric: given 'top3' \(did you mean 'top5'\?\)"):
            made_up(tmp_path, train, grid=ONE_GROUP, base=base, rules={"metric": "top3"})
    finally:
        catalog.use_project(None)

    assert row["winner"] == f"batch size {winner}"
    assert row["test_metric"] == own[winner]
    assert set(study_runs.runs["test_metric_name"]) == {"top5"}
    assert times.loc[16, "best_metric"] == own[16] + (1 if better == "higher" else -1)


def _metric(root, name):
    """Write a model that has a metric of its own."""
    (root / "models").mkdir()
    function = f"def {name}(outputs, targets):\n    return outputs\n"
    build = "def build(input_shape, outputs):\n    return None\n"
    (root / "models" / "judged.py").write_text(f'METRICS = {{"{name}": "higher"}}\n{function}{build}')


def won(study_runs):
    (row,) = winners.build(study_runs).to_dict("records")
    return row


@pytest.mark.parametrize(("name", "winner", "second"), [("accuracy", 16, 64), ("error", 32, 64)])
def test_the_best_test_metric_wins_where_the_study_says_so(tmp_path, name, winner, second):
    """Repeats of 16 have 0.90 to 0.92, of 32 0.7 to 0.72; 64, whose loss area is the least, has 0.80 to 0.82."""
    curves = {
        batch: [[(1.0, best + 0.01 * seed)] for seed in range(3)] for batch, best in ((16, 0.9), (32, 0.7), (64, 0.8))
    }
    study_runs = with_evaluations(tmp_path, curves, name, rules={"winner_by": "test_metric"})
    row = won(study_runs)

    best = {16: 0.91, 32: 0.71, 64: 0.81}
    assert (row["winner"], row["second"]) == (f"batch size {winner}", f"batch size {second}")
    assert row["test_metric"] == pytest.approx(best[winner])
    assert row["standard_error"] == pytest.approx(0.01 / np.sqrt(3))
    assert row["margin_percent"] == pytest.approx(100 * abs(best[second] / best[winner] - 1))
    assert row["judged_by"] == "3 repeats, 2 degrees of freedom"
    assert row["cannot_be_told_from"] == ""
    assert list(areas.build(study_runs)["test_metric"]) == pytest.approx(list(best.values()))


def test_metrics_that_scatter_more_than_they_differ_are_not_told_apart(tmp_path):
    curves = {
        batch: [[(1.0, best - 0.1 * seed)] for seed in range(3)] for batch, best in ((16, 0.9), (32, 0.3), (64, 0.85))
    }
    row = won(with_evaluations(tmp_path, curves, rules={"winner_by": "test_metric"}))

    assert (row["winner"], row["cannot_be_told_from"]) == ("batch size 16", "batch size 64")


def test_of_single_runs_the_metric_tells_nothing_apart(tmp_path):
    curves = {16: [[(1.0, 0.99)]], 32: [[(1.0, 0.5)]], 64: [[(1.0, 0.1)]]}
    row = won(with_evaluations(tmp_path, curves, rules={"winner_by": "test_metric"}))

    assert (row["winner"], row["cannot_be_told_from_count"]) == ("batch size 16", 2)
    assert row["judged_by"] == "not told apart: one run each"
    assert np.isnan(row["standard_error"])


TO_09 = {"winner_by": {"time_to": 0.9}}


def test_the_first_with_the_metric_wins_whatever_its_end(tmp_path):
    curves = {
        16: [[(1.0, 0.5), (2.0 + x, 0.9), (3.0, 0.6)] for x in (0.0, 0.01, 0.02)],
        32: [[(3.0, 0.5), (4.0 + x, 0.99)] for x in (0.0, 0.01, 0.02)],
        64: [[(1.0, 0.5), (2.5 + x, 0.99)] for x in (0.0, 0.01, 0.02)],
    }
    row = won(with_evaluations(tmp_path, curves, rules=TO_09))

    assert (row["winner"], row["time_to_s"], row["test_metric"]) == ("batch size 16", 2.01, 0.6)
    # 64 may have had it since just after 1 s; 32 had not at 3 s
    assert row["cannot_be_told_from"] == "batch size 64"
    assert pd.isna(row["doubt"])


def test_who_never_has_the_metric_loses_and_the_doubt_says_where_more_budget_might_help(tmp_path):
    """16 ends at 1 s, before 32 has it at 3 s; 64 had more time than that, and it was of no use."""
    curves = {
        16: [[(1.0, 0.89)], [(1.0, 0.89)]],
        32: [[(2.0, 0.5), (3.0, 0.95)], [(2.0, 0.5), (3.1, 0.95)]],
        64: [[(9.0, 0.9)], [(9.0, 0.8)]],
    }
    study_runs = with_evaluations(tmp_path, curves, rules=TO_09)
    row = won(study_runs)

    assert row["winner"] == "batch size 32"
    assert "1 never reached the test metric" in row["excluded_because"]
    assert "1 with 1 of 2 repeats never reached the test metric" in row["excluded_because"]
    assert row["doubt"] == "1 ended before its time without the test metric: with more budget they may be faster"
    table = runs.build(study_runs)
    assert list(table["time_to_s"].fillna(0)) == [0, 0, 3.0, 3.1, 9.0, 0]
    assert list(table["time_before_s"]) == [1.0, 1.0, 2.0, 2.0, 0.0, 9.0]


def test_none_with_the_metric_is_no_winner(tmp_path):
    study_runs = with_evaluations(tmp_path, {batch: [[(1.0, 0.5)]] for batch in (16, 32, 64)}, rules=TO_09)

    assert won(study_runs)["winner"] == NO_WINNER
    assert set(areas.build(study_runs)["excluded"]) == {"never reached the test metric"}


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("test_metric", ["test metric", "best test metric at the end wins"]),
        ({"time_to": 0.9}, ["time to the test metric (s)", "0.9 or better first", "never reached the test metric"]),
    ],
)
def test_heat_map_bars_and_page_show_what_decides(tmp_path, rule, said):
    curves = {
        16: [[(1.0, 0.5), (2.0, 0.9)], [(1.0, 0.5), (2.1, 0.92)]],
        32: [[(1.0, 0.5), (4.0, 0.91)], [(1.0, 0.5), (4.1, 0.93)]],
        64: [[(1.0, 0.5)], [(1.0, 0.5)]],
    }
    study_runs = with_evaluations(tmp_path, curves, rules={"winner_by": rule})
    tables = {"areas": areas.build(study_runs), "winners": winners.build(study_runs)}
    with style():
        figures = [module.draw(tables, study_runs.study, "") for module in (heat_map, loss_areas)]
    shown = [*in_words(study_runs.study.rules, study_runs.study.looks), *(words(figure) for figure in figures)]

    for text in said[1:]:
        assert any(text in part for part in shown)
    labels = [figures[0].axes[-1].get_ylabel(), figures[1].axes[0].get_ylabel()]
    assert [" ".join(text.split()) for text in labels] == [said[0]] * 2
    named = {text.get_text() for text in figures[0].axes[0].texts}
    assert named >= ({"0.91", "0.92"} if rule == "test_metric" else {"2.05", "4.05"})


def test_points_on_other_kinds_of_devices_do_not_compete_in_time(tmp_path):
    def train(spec):
        return constant(4.0, spec.steps_asked, device_used="cuda" if spec.batch_size == 16 else "cpu")

    (row,) = winners.build(made_up(tmp_path, train, grid=ONE_GROUP)).to_dict("records")

    assert row["winner"] == NO_WINNER
    assert row["judged_by"] == "not comparable: the points ran on cpu and cuda; name one with device"
