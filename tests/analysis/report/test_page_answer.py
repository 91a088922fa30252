"""The page answers first: what was found, how sure that is, what may be published, and from which runs."""

from dataclasses import replace

import pandas as pd
import pytest
from factory import constant, made_up, planned, realistic

from ddp_hpc.analysis import tables
from ddp_hpc.analysis.formatting import as_texts
from ddp_hpc.analysis.report.answer import found, how_sure
from ddp_hpc.analysis.report.publishable import ALONE, publishable, rows_named
from ddp_hpc.analysis.report.row_runs import runs_of_rows

GRID = [
    {"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": [0.1, 0.5]},
    {"exchange": "ring", "world_size": [2, 16], "batch_size": 16, "learning_rate": [0.1, 0.5]},
]
NAMES = ("runs", "winners", "scaling", "phases")


def train(spec):
    """Two ranks train in half the time; rate 0.5 has half the area; seeds differ by some per mille."""
    ranks, steps = min(spec.world_size, 2), spec.steps_asked or 100
    seed = 1 + 0.001 * ranks * (spec.seed % 3)
    area = constant(0.2 * seed / (5 * spec.learning_rate + 0.5))
    t_s = tuple(10 * seed / ranks * (step + 1) / steps for step in range(steps))
    columns = dict(area.columns) | {"test_metric": 0.9, "test_metric_name": "accuracy"}
    return replace(area, t_s=t_s, loss=(0.1,) * steps, columns=columns)


def read(folder, study_runs):
    for name in NAMES:
        tables.make(name, study_runs, folder / "tables")
    return {name: pd.read_parquet(folder / "tables" / f"{name}.parquet") for name in NAMES}


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repeated")
    study_runs = made_up(folder, train, grid=GRID, repeats=3)
    return study_runs, read(folder, study_runs)


def test_the_answer_says_the_speedup_with_its_interval_and_the_winner_with_its_metric(repeated):
    study_runs, made = repeated
    findings = found(study_runs, made)
    speedup, *winners = [finding for finding in findings if finding.runs]

    assert speedup.text.startswith("2 ranks train in 5")
    assert "what one rank trains in 10 s: 1.998" in speedup.text
    assert "(95 %: " in speedup.text
    assert "At learning rate 0.5, the winner of 2 ranks." in speedup.text
    assert [finding.text.partition(":")[0] for finding in winners] == ["no exchange, 1 rank", "ring, 2 ranks"]
    assert all("learning rate 0.5 wins: loss area" in finding.text for finding in winners)
    assert all("test accuracy 0.9" in finding.text for finding in winners)
    assert findings[-1].text == "In 1 of 3 groups no run may win."


@pytest.mark.parametrize("train_s", [12.0, 5.2])  # beyond the interval, and within it but not the ratio beside them
def test_times_of_all_rounds_that_say_otherwise_than_the_rounds_are_not_told(repeated, train_s):
    study_runs, made = repeated
    slowed = made | {"scaling": made["scaling"].assign(train_s=train_s)}

    assert found(study_runs, slowed)[0].text.startswith("2 ranks train 1.9980 times as fast as one rank (95 %: ")


def test_a_sentence_from_disturbed_runs_says_so(tmp_path):
    def disturbed(spec):
        result = train(spec)
        taken = {"core_wait_share": 0.2, "others_core_share": 0.2} if (spec.world_size, spec.seed) == (2, 0) else {}
        return replace(result, columns=dict(result.columns) | taken)

    study_runs = made_up(tmp_path, disturbed, grid=GRID, repeats=3)
    speedup, alone, of_two = [one.text for one in found(study_runs, read(tmp_path, study_runs)) if one.runs]

    words = "Not reliable: something else used the cores in 1 of 3 runs."
    assert speedup.endswith(f"the winner of 2 ranks. {words}")
    assert words not in alone
    assert of_two.endswith(words)
    by_metric = made_up(tmp_path / "metric", disturbed, grid=GRID, repeats=3, rules={"winner_by": "test_metric"})
    winners = [one for one in found(by_metric, read(tmp_path / "metric", by_metric)) if one.section == "winners"]
    assert not any(words in one.text for one in winners)  # no time decides who wins


def test_a_point_without_a_rival_wins_nothing(tmp_path):
    study_runs = made_up(tmp_path, train, grid=[part | {"learning_rate": 0.5} for part in GRID], repeats=3)
    said = " ".join(one.text for one in found(study_runs, read(tmp_path, study_runs)))

    assert "times as fast" in said
    assert "wins" not in said


def test_each_sentence_and_row_names_the_runs_that_it_is_from(repeated):
    study_runs, made = repeated
    speedup = found(study_runs, made)[0]
    specs = [study_runs.planned[number - 1].spec for number in speedup.runs]

    assert [(spec.world_size, spec.learning_rate, spec.seed) for spec in specs] == [(2, 0.5, seed) for seed in range(3)]
    for row, numbers in zip(
        made["winners"]["winner_runs"], runs_of_rows(made["winners"], study_runs.runs), strict=True
    ):
        assert [study_runs.planned[number - 1].run for number in numbers] == ([] if pd.isna(row) else row.split())
    assert all(len(numbers) == 6 for numbers in runs_of_rows(made["phases"], study_runs.runs))  # both learning rates
    assert runs_of_rows(pd.DataFrame({"other": [1, 2]}), study_runs.runs) == [[], []]


def test_it_says_how_winners_were_judged_and_what_was_left_out(repeated):
    said = " ".join(how_sure(*repeated))

    assert "Winners are judged by 3 repeats (2 of 2 groups)." in said
    assert "In 2 of 2 groups the winner is told apart from all others." in said
    assert "6 of 18 runs had more threads than cores" in said
    assert "something else used the cores" not in said
    assert "ran once" not in said


def test_a_winner_without_a_rival_that_may_win_is_told_apart_from_nobody(tmp_path):
    def lonely(spec):
        """Only rate 0.5 comes down to the threshold."""
        result = train(spec)
        return replace(result, columns=dict(result.columns) | {"min_loss": 0.1 if spec.learning_rate == 0.5 else 3.0})

    study_runs = made_up(tmp_path, lonely, grid=GRID[0], repeats=3)
    made = read(tmp_path, study_runs)

    (sentence,) = [finding.text for finding in found(study_runs, made) if finding.section == "winners"]
    assert sentence.endswith("; no other point may win.")
    assert how_sure(study_runs, made)[0].startswith("In 1 of 1 group no other point may win: ")
    assert not any("told apart" in said for said in [sentence, *how_sure(study_runs, made)])
    assert dict(publishable(study_runs.study, made, study_runs.runs).others)["the winner has no rival"] == 1


def test_numbers_of_repeats_may_be_published_those_of_crowded_runs_not(repeated):
    study_runs, made = repeated
    judged = publishable(study_runs.study, made, study_runs.runs)

    assert {number.section for number in judged.numbers} == {"winners", "scaling", "phases"}
    assert all(number.interval for number in judged.numbers)
    assert not any("16 ranks" in number.of for number in judged.numbers)
    assert dict(judged.others) == {"more threads than cores": 5, "no run may win": 1}
    assert judged.count == len(judged.numbers) + 6
    winner = next(number for number in judged.numbers if number.section == "winners" and "ring" in number.of)
    assert "of the winner, batch size 16, learning rate 0.5" in winner.what
    assert len(winner.runs) == 3


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"interval_from": "1 run: within it only"}, ALONE),
        ({"speedup_low": float("nan")}, "no interval"),
        ({"slow_steps_share": 0.5}, "more than a third of the time went to slow steps"),
    ],
)
def test_a_number_that_breaks_a_rule_is_counted_with_its_reason(repeated, changed, reason):
    study_runs, made = repeated
    scaling = {"scaling": made["scaling"].assign(**changed)}

    judged = publishable(study_runs.study, scaling, study_runs.runs)
    assert judged.numbers == []
    assert dict(judged.others) == {reason: 4, "more threads than cores": 4}  # of fixed samples, and weak


def test_numbers_beside_which_others_used_the_cores_are_not_published(repeated):
    study_runs, made = repeated
    crowded = study_runs.runs.assign(core_wait_share=0.5, others_core_share=0.5)

    judged = publishable(study_runs.study, {"scaling": made["scaling"]}, crowded)
    assert dict(judged.others)["other programs took cores from the runs"] == 4


def test_a_winner_of_single_runs_is_not_for_publication(tmp_path):
    study_runs = made_up(tmp_path, realistic, grid=GRID[:1], tables=["runs", "winners"], budget={"samples_seen": 6144})
    made = read(tmp_path, study_runs)
    judged = publishable(study_runs.study, {"winners": made["winners"]}, study_runs.runs)

    assert judged.numbers == []
    assert any("ran once" in sentence for sentence in how_sure(study_runs, made))


def test_exchanges_and_pairs_are_compared_in_sentences_and_a_reference_not_with_itself(tmp_path):
    spec = {"exchange": "ring", "world_size": 2, "batch_size": 16, "oversubscribed": False}
    interval = {"times_as_fast_low": 1.1, "times_as_fast_high": 1.5, "times_as_fast_from": "1 run: within it only"}
    itself = {"times_as_fast": 1.0, "times_as_fast_low": 1.0, "times_as_fast_high": 1.0}
    exchanges = [
        spec | {"reference": "none", "times_as_fast": 1.3} | interval,
        spec | {"reference": "ring"} | interval | itself,
    ]
    pair = {"first": "none", "second": "ring", "ratio": 0.98, "ratio_low": 0.9, "ratio_high": 1.1, "told_apart": False}
    ranks = {"world_size": 2, "batch_size": 16, "oversubscribed": False, "interval_from": "3 runs"}
    made = {
        "exchanges": pd.DataFrame(exchanges),
        "pairs": pd.DataFrame([pair | ranks, pair | ranks | {"told_apart": None}]),
    }
    study_runs = planned(tmp_path, grid=GRID)
    sentences = found(study_runs, made)

    apart = "(95 %: 0.90 to 1.10: may be no difference), which does not tell them apart."
    assert [one.text for one in sentences] == [
        "ring, 2 ranks: 1.30 times as fast as none (95 %: 1.10 to 1.50, within one run).",
        *[f"2 ranks: ring is 0.98 times as fast as none {apart}"] * 2,
    ]
    assert [one.runs for one in sentences] == [[3, 4]] * 3
    assert dict(publishable(study_runs.study, made, study_runs.runs).others) == {
        ALONE: 1,
        "the two of a round were no neighbours in time": 1,
    }


def test_groups_that_differ_in_the_options_of_a_choice_alone_are_told_apart():
    models = ['{"channels": 4}', '{"channels": 16, "wide": true}']
    table = pd.DataFrame({"exchange": "none", "world_size": 1, "model": "conv", "model_options": models})
    of_what = rows_named(table)

    assert [of_what(row) for row in table.to_dict("records")] == [
        "no exchange, 1 rank, model conv (channels 4)",
        "no exchange, 1 rank, model conv (channels 16, wide)",
    ]
    assert list(as_texts(table)["model_options"]) == ["channels 4", "channels 16, wide"]
