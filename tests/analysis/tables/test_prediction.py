"""What a study's own runs say of world sizes that it did not measure: rows, reasons, and what to run."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from drawn import words
from factory import Result, made_up

from ddp_hpc import perfmodel
from ddp_hpc.analysis import predict, tables
from ddp_hpc.analysis.figures import cost as draw_cost
from ddp_hpc.analysis.figures import prediction as draw
from ddp_hpc.analysis.figures._style import UNITS, style
from ddp_hpc.analysis.report import answer
from ddp_hpc.analysis.tables import _scaling_lines, claims, cost, prediction
from ddp_hpc.analysis.tables._approaches import NOT_SAMPLED
from ddp_hpc.analysis.tables._scaling_lines import Elsewhere, Price
from ddp_hpc.cli import main
from ddp_hpc.perfmodel import Link

STEPS, SIZE = 60, 4e4  # bytes of 10,000 parameters
LATENCY, BANDWIDTH = 5e-5, 1e8
MEASURE = _scaling_lines.measured_run


def work_s(batch):
    return 1e-3 + 2e-5 * batch


def exchange_s(n):
    return 2 * (n - 1) * LATENCY + 2 * (n - 1) / n * SIZE / BANDWIDTH  # ring


def trained(spec, scatter=0.01, **columns):
    """Steps of known work and a ring of known latency and bandwidth; the ranks scatter evenly about their mean."""
    rng, n = np.random.default_rng(spec.seed + 100 * spec.world_size), spec.world_size
    own = work_s(spec.batch_size) * (1 + scatter * rng.normal(size=(STEPS, n)))
    late, moving = own.max(axis=1, keepdims=True) - own, 0.0 if spec.exchange.name == "none" else exchange_s(n)

    def of_rank(step, rank):
        waiting, work = late[step - 1, rank], own[step - 1, rank]
        return {
            "step_s": work + waiting + moving,
            "exchange_exposed_s": waiting + moving,
            "wait_s": waiting,
            "move_s": moving,
        }

    t_s = np.cumsum(own.max(axis=1) + moving)
    return Result(t_s=tuple(t_s), loss=tuple(2.0 / (1 + np.arange(STEPS))), of_rank=of_rank, columns=columns)


def grid(*world_sizes, **more):
    alone = {"exchange": "none", "world_size": 1}
    several = {"exchange": "ring", "world_size": [n for n in world_sizes if n > 1]}
    return [one | {"batch_size": 32, "learning_rate": 0.1} | more for one in (alone, several)]


def study(folder, *world_sizes, train=trained, repeats=3, **keys):
    keys = {"grid": grid(*world_sizes), "budget": {"steps": STEPS}, "repeats": repeats} | keys
    return made_up(folder, train, **keys)


def at(frame, n, kind="weak"):
    return frame[(frame["world_size"] == n) & (frame["kind"] == kind)].iloc[0]


def test_a_step_is_predicted_from_smaller_world_sizes(tmp_path):
    frame = prediction.predicted(study(tmp_path, 1, 2, 3, 4), [8, 33], Elsewhere(ranks_per_node=1024))

    row = at(frame, 8)
    assert row["exchange_s"] == pytest.approx(exchange_s(8), rel=1e-6)
    assert row["work_s"] == pytest.approx(work_s(32), rel=0.01)
    waiting_s = 0.01 * work_s(32) * 1.4236  # the expected maximum of 8 normal deviates
    assert row["waiting_s"] == pytest.approx(waiting_s, rel=0.2)
    assert row["step_low_s"] < work_s(32) + waiting_s + exchange_s(8) < row["step_high_s"]
    assert row["held_out_world_size"] == 4
    assert abs(row["held_out_error_percent"]) < 1
    far = at(frame, 33)
    assert np.isnan(far["step_s"])
    assert far["reason"] == "more than 8 times the largest measured world size, 4"


def test_strong_scaling_follows_the_batch(tmp_path):
    share = [
        {name: one[name] for name in one if name != "batch_size"} | {"global_batch_size": 96} for one in grid(2, 3, 4)
    ]
    frame = prediction.predicted(study(tmp_path, grid=share), [8, 10], Elsewhere(ranks_per_node=1024))

    assert at(frame, 8, "strong")["work_s"] == pytest.approx(work_s(12), rel=0.01)
    assert at(frame, 10, "strong")["reason"] == "a global batch of 96 is no multiple of 10 ranks"


def test_what_was_proposed_makes_a_prediction_possible(tmp_path):
    lacking = prediction.build(study(tmp_path / "a", 1, 2))
    row = at(lacking, 8)
    assert row["reason"].endswith("too few world sizes to tell latency from bandwidth")
    assert row["to_run"] == "- {exchange: ring, world_size: [3], batch_size: 32, learning_rate: 0.1}"

    whole = [*grid(1, 2), {"exchange": "ring", "world_size": [3], "batch_size": 32, "learning_rate": 0.1}]
    assert at(prediction.predicted(study(tmp_path / "b", grid=whole), [8]), 8)["step_s"] > 0


def test_a_node_boundary_that_was_never_crossed_needs_its_link(tmp_path):
    here = study(tmp_path, 1, 2, 4)  # on a node of 8 cores
    row = at(prediction.predicted(here, [16]), 16)
    assert "no run crossed a node boundary" in row["reason"]
    assert row["to_run"] == (
        "- {exchange: ring, world_size: [2, 3], batch_size: 32, placement: spread, ranks_per_node: 1, "
        "learning_rate: 0.1}"
    )

    known = Elsewhere(link=Link(latency=1e-3, bandwidth=1e9), ranks_per_node=8)
    row = at(prediction.predicted(here, [16], known), 16)
    assert row["nodes"] == 2
    assert row["exchange_s"] == pytest.approx(30 * 1e-3 + 30 / 16 * SIZE / 1e9)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"oversubscribed": True}, "its runs have more ranks x threads than cores"),
        ({"step_s": 1e-6}, "its runs were disturbed"),
    ],
)
def test_nothing_is_predicted_from_runs_whose_times_mean_nothing(tmp_path, columns, reason):
    here = study(tmp_path, 1, 2, 4, train=lambda spec: trained(spec, **columns))
    for name, value in (("prediction", "step_s"), ("cost", "time_s")):
        file = tables.make(name, here, tmp_path / "tables")
        frame = pd.read_parquet(file)
        assert frame[value].isna().all()
        assert frame["reason"].str.startswith(reason).all()
        assert tables.lines(name, file) == []  # a terminal shows nothing of it


def test_an_exchange_that_overlaps_needs_its_whole_time(tmp_path):
    several = {"exchange": "torch_ddp", "world_size": [2, 3, 4], "batch_size": 32, "learning_rate": 0.1}
    frame = prediction.build(study(tmp_path, grid=[grid(1, 2)[0], several]))

    assert frame["reason"].str.startswith("only the exposed part of the exchange was recorded").all()


def test_ranks_that_step_by_themselves_have_no_model(tmp_path):
    several = {"exchange": "async_server", "world_size": [2, 4], "batch_size": 32, "learning_rate": 0.1}
    frame = prediction.build(study(tmp_path, grid=[grid(1, 2)[0], several]))

    assert frame["reason"].str.contains("each rank takes its steps by itself").all()


def test_cost_is_time_times_ranks_and_nodes(tmp_path):
    here = study(tmp_path, 1, 2, 4, rules={"loss_threshold": 0.5})
    link = Link(latency=LATENCY, bandwidth=BANDWIDTH)
    known = Elsewhere(ranks_per_node=2, link=link, price=Price(3.0, "EUR"))
    frame = cost.costs(here, [8], known)

    row = at(frame[frame["goal"] == "budget"], 8)
    assert row["from"] == "predicted"
    assert row["nodes"] == 4
    assert row["time_s"] == pytest.approx(STEPS * at(prediction.predicted(here, [8], known), 8)["step_s"])
    assert row["rank_hours"] == pytest.approx(8 * row["time_s"] / 3600)
    assert row["node_hours"] == pytest.approx(4 * row["time_s"] / 3600)
    assert row["money"] == pytest.approx(3 * row["node_hours"])
    assert row["currency"] == "EUR"
    to_loss = frame[frame["goal"] == "loss 0.5"]
    assert at(to_loss, 4)["from"] == "measured"
    assert at(to_loss, 4)["steps"] == 4  # the loss is 2/4 there
    runs = here.runs.query("world_size == 4")
    times = [here.steps(run).query("step == 4")["t_s"].iloc[0] for run in runs["run"]]
    assert at(to_loss, 4)["time_s"] == pytest.approx(np.median(times))
    assert np.isnan(at(to_loss, 8)["time_s"])
    assert at(to_loss, 8)["reason"] == f"{cost.OTHER_BATCH}: {NOT_SAMPLED}"


def test_strong_scaling_takes_the_same_steps_to_a_loss(tmp_path):
    share = [
        {name: one[name] for name in one if name != "batch_size"} | {"global_batch_size": 96} for one in grid(2, 3, 4)
    ]
    here = study(tmp_path, grid=share, rules={"loss_threshold": 0.5})
    frame = cost.costs(here, [8], Elsewhere(ranks_per_node=1024)).query("goal == 'loss 0.5'")

    row = at(frame, 8, "strong")
    step_s = at(prediction.predicted(here, [8], Elsewhere(ranks_per_node=1024)), 8, "strong")["step_s"]
    assert (row["from"], row["steps"]) == ("predicted", 4)
    assert row["time_s"] == pytest.approx(4 * step_s)


def test_the_price_is_that_at_which_runs_were_requested(tmp_path):
    asked = {"request": {"price_per_node_hour": 2.0, "currency": "CHF"}}
    here = study(tmp_path, 1, 2, 4, train=lambda spec: replace(trained(spec), provenance=asked))
    row = at(cost.build(here), 4)

    assert row["money"] == pytest.approx(2 * row["node_hours"])
    assert row["currency"] == "CHF"


def test_on_the_front_nothing_is_both_sooner_there_and_cheaper(tmp_path):
    several = [{"exchange": name, "world_size": [2, 3, 4], "batch_size": 32} for name in ("ring", "mpi_allreduce")]
    whole = [grid(1, 2)[0], *(one | {"learning_rate": 0.1} for one in several)]

    def train(spec):
        slow = 2.0 if spec.exchange.name == "mpi_allreduce" else 1.0
        result = trained(spec)
        return replace(result, t_s=tuple(slow * np.array(result.t_s)), of_rank=None)

    frame = cost.costs(study(tmp_path, grid=whole, train=train, budget={"samples_seen": 23040}), [])
    known = frame[frame["goal"] == "budget"]

    for row in known.to_dict("records"):
        others = known[(known["time_s"] < row["time_s"]) & (known["rank_hours"] < row["rank_hours"])]
        assert row["on_front"] == others.empty
    assert not known.query("exchange == 'mpi_allreduce' and world_size > 1")["on_front"].any()
    assert known["on_front"].any()


def test_time_against_cost_has_its_front_and_says_what_is_predicted(tmp_path):
    here = study(tmp_path, 1, 2, 4, rules={"loss_threshold": 0.5})
    frame = cost.costs(here, [8], Elsewhere(ranks_per_node=1024))
    with style():
        figure = draw_cost.draw({"cost": frame}, here.study, "")
        empty = draw_cost.draw({"cost": frame.assign(time_s=np.nan)}, here.study, "")

    to_end, to_loss = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["to the end of the budget", "to loss 0.5"]
    budget = frame[frame["goal"] == "budget"]
    (hollow,) = (
        line for line in to_end.lines if line.get_markerfacecolor() == "#ffffff" and line.get_marker() != "None"
    )
    seconds = UNITS[to_loss.get_xlabel().partition("(")[2].rstrip(")")]
    predicted = budget[budget["from"] == "predicted"]["time_s"]
    assert list(hollow.get_xdata()) == pytest.approx(list(predicted / seconds))
    assert not [line for line in to_loss.lines if line.get_markerfacecolor() == "#ffffff"]
    assert "how many steps another global batch needs is not known" in str(figure.get_label())
    assert "how many steps another global batch needs" in words(empty).replace("\n", " ")


def test_more_ranks_are_worth_it_until_the_exchange_takes_what_they_add(tmp_path):
    def rate(n):
        return n / (work_s(32) + exchange_s(n))

    here = study(tmp_path, 1, 2, 4)
    row = at(cost.costs(here, [8], Elsewhere(ranks_per_node=1024)), 8)
    gains = {n: (rate(2 * n) - rate(n)) / n / rate(1) for n in (1, 2, 4, 8, 16)}
    last = next(n for n, gain in gains.items() if gain < 0.5)
    assert row["worthwhile_world_size"] == last
    said = f"{last} ranks is where one more stops paying: from {last} to {2 * last} one more adds {gains[last]:.2g} of"
    assert row["worth_it"] == f"{said} the rate of the first, less than 0.5"
    (sentence,) = answer._of_cost({"cost": cost.costs(here, [8], Elsewhere(ranks_per_node=1024))})
    assert sentence.text.startswith(f"ring, weak scaling, 32 samples per rank: {last} ranks is where")


def claim(**from_runs):
    ours = {"from_runs": {"exchange": "ring", "fitted_at": [1, 2, 3], "world_size": 4} | from_runs}
    said = {"id": "held_out", "statement": "the model holds", "source": "ours", "kind": "own", "published": 1.0}
    return said | {
        "ours": ours,
        "expect": {"within": 0.1},
        "applies_when": ["complete", "within_cores", "quiet"],
    }


def test_a_claim_predicted_from_runs_is_judged_on_others(tmp_path):
    good = study(tmp_path / "good", 1, 2, 3, 4, claims=[claim(quantity="over_measured"), claim() | {"id": "x"}])
    (ratio, seconds) = claims.build(good).to_dict("records")

    assert ratio["verdict"] == "confirmed"
    assert ratio["ours_low"] < 1 < ratio["ours_high"]
    assert ratio["interval_from"] == "predicted from 9 runs at 1, 2, 3 ranks"
    step_s = at(prediction.predicted(good, []), 4)["measured_s"]
    assert seconds["ours"] == pytest.approx(ratio["ours"] * step_s)


def test_a_claim_is_not_tested_where_its_runs_do_not_tell(tmp_path):
    asked = [claim(fitted_at=[1, 2]), claim(fitted_at=[2, 3], world_size=8, quantity="over_measured") | {"id": "x"}]
    rows = claims.build(study(tmp_path, 1, 2, 3, 4, claims=asked)).to_dict("records")

    assert [row["verdict"] for row in rows] == ["not testable here"] * 2
    assert "too few world sizes to tell latency from bandwidth" in rows[0]["reason"]
    assert "no run measured it at 8 ranks" in rows[1]["reason"]


def test_the_verb_says_in_words_and_in_json_what_the_table_says(tmp_path, monkeypatch, capsys):
    here = study(tmp_path, 1, 2, 3, 4)
    monkeypatch.setattr(main, "_project", lambda: type("P", (), {"study_runs": lambda self, name: here})())

    def said(*words):
        with pytest.raises(SystemExit) as ended:
            main.main(["predict", "made_up", *words])
        assert ended.value.code == (0 if "8,80" in words else 2)
        return capsys.readouterr()

    text = said("--world-size", "8,80").out
    assert text.startswith("ring: weak scaling, 32 samples per rank; predicted from the smaller ones, 4 ranks are ")
    assert "80 ranks: it needs several nodes" in text
    rows = json.loads(said("--world-size", "8,80", "--json").out)["prediction"]
    assert [row["world_size"] for row in rows] == [1, 2, 3, 4, 8, 80]
    assert rows[-1]["step_s"] is None
    assert "expected: both" in said("--latency", "1e-6").err
    assert "expected: integers from 1" in said("--world-size", "8,x").err
    assert list(predict.lines({"prediction": [], "cost": []})) == [
        "nothing to predict: no run of this study has an exchange"
    ]


def test_the_figure_says_what_was_measured_what_not_and_how_far_off_the_model_is(tmp_path):
    here = study(tmp_path, 1, 2, 3, 4)
    frame = prediction.predicted(here, [8, 80])
    with style():
        figure = draw.draw({"prediction": frame}, here.study, "6 of 6 runs")

    told = str(figure.get_label())  # its caption
    assert "4 ranks were left out" in told
    assert "No prediction at 80 ranks" in told
    upper, lower = figure.axes
    (hollow,) = (line for line in upper.lines if line.get_markerfacecolor() == "#ffffff")
    assert list(hollow.get_xdata()) == [8]
    heights = np.array([bar.get_height() for bar in lower.patches]).reshape(-1, 3).sum(axis=1)
    assert heights == pytest.approx(1e3 * frame["step_s"].dropna())  # parts add up to the step


def test_what_if_stands_beside_what_was_measured_and_is_drawn_over_it(tmp_path):
    """Another link, another exchange and other servers, by the links that were fitted."""
    here = study(tmp_path, 1, 2, 3, 4)
    found = predict.answer(here, predict.Wanted([8]), None, predict.WhatIf(exchange="sharded_server servers=2"))
    rows, other = (pd.DataFrame(part["prediction"]).set_index("world_size") for part in (found, found["what_if"]))

    one = perfmodel.cost("sharded_server", SIZE, 4, servers=2)
    expected = one.rounds * LATENCY + one.path_bytes / BANDWIDTH
    assert other.loc[4, "exchange_s"] == pytest.approx(expected, rel=1e-3)
    assert other.loc[4, "work_s"] == rows.loc[4, "work_s"]
    text = list(predict.lines(found))
    assert "What if: exchange sharded_server servers=2. All else is as measured." in text
    slow = predict.WhatIf(latency_s=1e-3, gb_per_s=1.0)
    over_it = predict.answer(here, predict.Wanted([4]), None, slow)["what_if"]["prediction"]
    link = pd.DataFrame(over_it).set_index("world_size")
    assert link.loc[4, "exchange_s"] == pytest.approx(6 * 1e-3 + 1.5 * SIZE / 1e9, rel=1e-3)
    file = predict.drawn(found, here.study, "", tmp_path / "what_if.svg")
    assert "what if: exchange sharded_server servers=2" in file.read_text().replace("&#160;", " ")
    with pytest.raises(ValueError, match="no exchange 'rign'"):
        predict.answer(here, predict.Wanted([8]), None, predict.WhatIf(exchange="rign"))


EPOCH = 1440  # samples


def with_epoch(spec):
    return replace(trained(spec), provenance={"train_samples": EPOCH})


def test_a_batch_that_was_not_measured_has_its_step_and_epoch(tmp_path):
    """The study has `batch_size`, so a batch is that of a rank; what it takes is interpolated between 32 and 64."""
    whole = [*grid(1, 2, 3, 4), grid(1)[0] | {"batch_size": 64}]
    here = study(tmp_path, grid=whole, train=with_epoch)
    found = predict.answer(here, predict.Wanted([4], (48, 1000)), None, predict.WhatIf())
    inside, outside = found["prediction"]

    assert (inside["kind"], inside["world_size"], inside["batch_size"]) == ("weak", 4, 48)
    assert inside["work_s"] == pytest.approx(work_s(48), rel=0.01)
    assert inside["epoch_s"] == pytest.approx(EPOCH / (4 * 48) * inside["step_s"])
    assert inside["epoch_low_s"] < inside["epoch_s"] < inside["epoch_high_s"]
    assert outside["step_s"] is None
    assert outside["reason"] == "a batch of 1000 per rank is more than 8 times beyond the measured ones, 32 to 64"
    assert found["batch_sizes"] == {"given": [48, 1000], "key": "batch_size", "of": "each rank"}
    assert next(iter(predict.lines(found))) == "--batch-size is the batch of each rank, as the study has `batch_size`"


def test_of_a_study_with_a_global_batch_a_batch_is_that_of_all_ranks(tmp_path):
    share = [
        {name: one[name] for name in one if name != "batch_size"} | {"global_batch_size": 96} for one in grid(2, 3, 4)
    ]
    one_more = share[0] | {"global_batch_size": 192}  # one global batch does not tell the batch from the ranks beside
    found = predict.answer(
        study(tmp_path, grid=[*share, one_more]), predict.Wanted([4, 5], (192,)), None, predict.WhatIf()
    )
    _, four, five = found["prediction"]

    assert (four["kind"], four["batch_size"]) == ("strong", 48)
    assert four["work_s"] == pytest.approx(work_s(48), rel=0.01)
    assert five["reason"] == "a global batch of 192 is no multiple of 5 ranks"
    assert found["batch_sizes"]["of"] == "all ranks together"


def test_how_long_another_batch_takes_on_one_count_only_is_not_told(tmp_path):
    found = predict.answer(study(tmp_path, 1, 2, 3), predict.Wanted([4], (64,)), None, predict.WhatIf())
    (row,) = found["prediction"]
    assert row["step_s"] is None
    assert (
        row["reason"] == "how long the work takes with a batch of 64 and 4 ranks per node follows from no measured ones"
    )
    assert row["to_run"] == "- {exchange: ring, world_size: [2], batch_size: 64, learning_rate: 0.1}"


def test_the_count_that_is_there_soonest_within_the_node_hours_is_named_first(tmp_path):
    """On nodes of two ranks: 2 ranks cost least, more are sooner there, and 8 of them too dear."""
    several = {"exchange": "ring", "world_size": [2, 3, 4], "global_batch_size": 96, "learning_rate": 0.1}
    alone = several | {"exchange": "none", "world_size": 1}
    here = study(tmp_path, grid=[alone, several], rules={"loss_threshold": 0.5}, train=with_epoch)
    link = predict.WhatIf(latency_s=LATENCY, gb_per_s=BANDWIDTH / 1e9, ranks_per_node=2)

    def bought(hours):
        return predict.answer(here, predict.Wanted([8], (), hours), None, link)["what_if"]["node_hours"]

    costs = cost.costs(here, [8], predict.elsewhere(None, link)).query("goal == 'loss 0.5' and time_s > 0")
    cheapest = costs["node_hours"].min()
    enough, few = bought(2 * costs["node_hours"].max()), bought(0.9 * cheapest)
    soonest = costs.loc[costs["time_s"].idxmin()]
    assert enough["answer"][0].startswith(f"Ask for {soonest['world_size']} ranks on {soonest['nodes']} node")
    assert f"for {soonest['node_hours']:.3g} of" in enough["answer"][0]
    assert few["answer"][0].startswith("No count comes to loss 0.5 in ")
    assert few["answer"][0].endswith(f"takes the fewest, {cheapest:.3g}.")
    limit = costs["node_hours"].sort_values().iloc[1]
    within = costs[costs["node_hours"] <= limit]
    assert f"Ask for {within.loc[within['time_s'].idxmin(), 'world_size']} rank" in bought(limit)["answer"][0]


def test_it_says_how_far_each_count_comes_with_them(tmp_path):
    here = study(tmp_path, 1, 2, 3, 4, train=with_epoch, rules={})
    found = predict.answer(here, predict.Wanted([8, 80], (), 2000), None, predict.WhatIf())
    counts = {row["world_size"]: row for row in found["node_hours"]["counts"]}

    assert list(counts) == [1, 2, 3, 4, 8]  # of 80 ranks nothing is known
    row = counts[8]
    assert row["hours"] == 2000  # on one node
    assert row["steps"] == pytest.approx(2000 * 3600 / row["step_s"])
    assert row["samples"] == pytest.approx(row["steps"] * 8 * 32)
    assert row["epochs"] == pytest.approx(row["samples"] / EPOCH)
    (far,) = found["node_hours"]["answer"]  # more ranks see more samples in so many steps: none is sooner there
    assert far.startswith("Used up, 2,000 node-hours come farthest with 8 ranks on 1 node: ")
    assert "one more rank stops paying at 4 ranks on 1 node" in far
    text = list(predict.lines(found))
    assert text[:2] == [far, ""]
    assert text[2].split()[:3] == ["ranks", "batch", "nodes"]


def test_epochs_are_a_goal_for_the_node_hours(tmp_path):
    """They are as many samples for all counts: more ranks are sooner there, also with weak scaling."""
    here = study(tmp_path, 1, 2, 3, 4, train=with_epoch)
    found = predict.answer(here, predict.Wanted([8], (), 10, 90), None, predict.WhatIf())["node_hours"]
    row = found["counts"][-1]
    there = row["goals"]["90 epochs"]

    assert there["time_s"] == pytest.approx(90 * EPOCH / (8 * 32) * row["step_s"])
    assert there["time_low_s"] < there["time_s"] < there["time_high_s"]
    assert there["node_hours"] == pytest.approx(there["time_s"] / 3600)
    assert found["answer"][0].startswith("Ask for 8 ranks on 1 node: 90 epochs in ")
    with pytest.raises(ValueError, match="given --epochs alone"):
        predict.answer(here, predict.Wanted(None, (), None, 90), None, predict.WhatIf())


def test_without_a_step_no_count_is_named(tmp_path):
    here = study(tmp_path, 1, 2, train=lambda spec: Result("missing"))
    found = predict.answer(here, predict.Wanted(None, (), 10), None, predict.WhatIf())
    assert found["node_hours"]["answer"] == ["No count can be named: of none a step is known."]


def test_a_figure_of_nothing_says_why(tmp_path):
    here = study(tmp_path, 1, 2, train=lambda spec: Result("missing"))
    with style():
        figure = draw.draw({"prediction": prediction.build(here)}, here.study, "0 of 6 runs")

    assert "not complete: not yet run" in words(figure).replace("\n", " ")


def test_prediction_and_cost_read_the_steps_once_and_again_for_another_machine(tmp_path, monkeypatch):
    here, read = study(tmp_path, 1, 2, 4), []
    monkeypatch.setattr(_scaling_lines, "measured_run", lambda *given: read.append(given[1]["run"]) or MEASURE(*given))
    before = prediction.predicted(here, [8])
    runs = sorted(read)
    cost.costs(here, [8])

    assert runs == sorted(set(runs))
    assert sorted(read) == runs
    after = prediction.predicted(here, [8], Elsewhere(link=Link(latency=1.0, bandwidth=1e9)))
    assert len(read) == 2 * len(runs)
    assert at(after, 8)["exchange_s"] > at(before, 8)["exchange_s"]
