"""`ddp-hpc history`: what was given is cut into versions, points are followed through them, changes are judged."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from factory import Result, planned, study_file, write

from ddp_hpc.analysis.compare.significance import ALIKE, OPEN, WORSE
from ddp_hpc.analysis.figures._style import style
from ddp_hpc.analysis.figures._versions import draw
from ddp_hpc.cli import main
from ddp_hpc.publication.history.development import MAYBE_SAME, OTHER_WINNER, changes, develop
from ddp_hpc.publication.history.versions import versions
from ddp_hpc.publication.history.write import write as write_page

GRID = [
    {"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": [0.1, 0.5]},
    {"exchange": "ring", "world_size": 2, "batch_size": 16, "learning_rate": [0.1, 0.5]},
]
STUDY = {"grid": GRID, "repeats": 3, "budget": {"steps": 60}}
FIRST, SECOND, THIRD = ("a" * 40, "2026-01-01"), ("b" * 40, "2026-02-01"), ("c" * 40, "2026-03-01")


def trained(spec, commit, ended, slow=1.0, torch="2.13.0", areas=None):
    """Runs of 1 ms per step that scatter by 0.4 %; two ranks are `slow`; areas by learning rate."""
    rng = np.random.default_rng([spec.seed, spec.world_size, int(10 * spec.learning_rate), int(ended[5:7])])
    step_s = 1e-3 * np.exp(0.004 * rng.normal()) * (slow if spec.world_size == 2 else 1.0)
    t_s = np.cumsum(step_s * np.exp(0.05 * rng.normal(size=60)))
    area = (areas or {0.1: 0.5, 0.5: 0.3})[spec.learning_rate] * (1 + 0.01 * spec.seed)
    about = {"source": {"commit": commit, "dirty": False}, "software": {"torch": torch}}
    return Result(
        t_s=tuple(t_s),
        loss=(2.0, *np.linspace(1, 0.1, 59)),
        columns={"ended_at": f"{ended}T12:00:0{spec.seed}+00:00", "loss_area_loss_s": area},
        provenance=about,
    )


def train(study_runs, version, code, only=lambda spec: True, **how):
    """Train the runs of a study by a commit; their names have this hash of code."""
    for one in study_runs.planned:
        if only(one.spec):
            name = f"{one.run.rpartition('-')[0]}-{code * 10}"
            write(study_runs, replace(one, run=name), trained(one.spec, *version, **how))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project whose study three commits have trained: two ranks are slower since the second, and all of the third."""
    study_runs = planned(tmp_path, **STUDY)
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow" / "Snakefile").touch()
    monkeypatch.chdir(tmp_path)
    train(study_runs, FIRST, "1")
    train(study_runs, SECOND, "2", slow=1.2, torch="2.14.0")
    train(study_runs, THIRD, "3", only=lambda spec: spec.world_size == 2, slow=1.2, torch="2.14.0")
    return study_runs


def verdicts(developed, quantity):
    return {
        line.name: [value.verdict if value else None for value in line.values] for line in developed.lines[quantity]
    }


def test_a_change_beyond_the_noise_is_told_where_it_came_and_nowhere_else(project):
    with versions(["made_up"]) as found:
        developed = develop(found)
        told = [list(changes(developed, at)) for at in range(3)]

    assert [version.name for version in found] == ["a" * 8, "b" * 8, "c" * 8]
    assert verdicts(developed, "step_s") == {
        f"exchange {exchange}, world size {ranks}, learning rate {rate}": seen
        for exchange, ranks, seen in (("none", 1, ["", ALIKE, None]), ("ring", 2, ["", WORSE, ALIKE]))
        for rate in ("0.1", "0.5")
    }
    assert {verdict for line in verdicts(developed, "final_loss").values() for verdict in line} == {"", ALIKE, None}
    assert told[0] == []
    assert told[1][0].startswith("step time: 2 points no difference seen, 2 points worse; most: exchange ring")
    assert told[1][-1] == "beside the code: software.torch: 2.13.0, now 2.14.0"
    assert not [line for line in told[2] if "worse" in line or "beside" in line]
    line = next(line for line in developed.lines["efficiency"] if line.name.endswith("learning rate 0.1"))
    assert line.values[0].value / line.values[1].value == pytest.approx(1.2, rel=0.02)
    assert line.values[2] is None  # its baseline was not trained again


def test_the_verb_writes_a_page_a_figure_and_all_numbers(project, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["history", "made_up", "--to", "told"])
    out = capsys.readouterr().out
    page, table = (tmp_path / "told" / "index.html").read_text(), pd.read_csv(tmp_path / "told" / "history.csv")

    assert ended.value.code == 0
    assert out.splitlines()[0] == "made_up: 3 versions"
    assert "2 points worse" in out
    assert out.splitlines()[-1] == "page: told/index.html"
    assert page.count('class="change worse"') == 2
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', page)
    steps = table[table["quantity"] == "step_s"]
    assert steps.groupby("version").size().to_dict() == {"a" * 8: 4, "b" * 8: 4, "c" * 8: 2}
    assert (steps["low"] < steps["value"]).all()
    assert (steps[steps["verdict"] == "worse"]["change_percent"] - 20).abs().max() < 2
    with pytest.raises(SystemExit):
        main.main(["history", "made_up", "--json"])
    assert len(json.loads(capsys.readouterr().out)) == len(table)


def test_packs_and_folders_are_versions_and_a_run_of_two_packs_counts_once(project, tmp_path):
    pack, again = tmp_path / "pack", tmp_path / "again"
    shutil.copytree(
        tmp_path / "results" / "runs", pack / "runs", ignore=lambda _, names: [n for n in names if n[-1] in "23"]
    )
    shutil.copy(study_file(tmp_path / "other", **STUDY), pack / "study.yaml")
    shutil.copytree(pack, again)
    for folder in sorted((tmp_path / "results" / "runs").glob("*-2222222222")):
        shutil.copytree(folder, again / "runs" / folder.name)
    folder = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "results" / "runs", folder / "results" / "runs")
    with versions([str(again), str(pack), str(folder)]) as found:
        names = [(version.name, len(version.study_runs.planned)) for version in found]

    assert names == [("a" * 8, 12), ("b" * 8, 12), ("c" * 8, 6)]


def test_without_commits_a_spec_that_comes_again_begins_the_next_version(tmp_path):
    study_runs = planned(tmp_path, **STUDY)
    shutil.copy(tmp_path / "config" / "studies" / "made_up.yaml", tmp_path / "results.yaml")
    for number, (_, ended) in enumerate((FIRST, SECOND)):
        train(study_runs, (None, ended), str(number))
    pack = tmp_path / "results"
    shutil.copy(tmp_path / "results.yaml", pack / "study.yaml")
    with versions([str(pack)]) as found:
        names = [(version.name, version.began[:7]) for version in found]

    assert names == [("results #1", "2026-01"), ("results #2", "2026-02")]


def test_another_winner_is_told_only_if_it_is_told_apart_from_the_one_before(project):
    train(project, ("d" * 40, "2026-04-01"), "4", areas={0.1: 0.2, 0.5: 0.4})
    train(project, ("e" * 40, "2026-05-01"), "5", areas={0.1: 0.3001, 0.5: 0.3})
    with versions(["made_up"]) as found:
        won = {line.name: line.values for line in develop(found).lines["winner"]}

    values = won["no exchange, 1 rank"]
    assert [value.verdict if value else None for value in values] == ["", "", None, OTHER_WINNER, MAYBE_SAME]
    assert values[3].text == "batch size 16, learning rate 0.1"


def test_single_runs_are_shown_and_not_judged(tmp_path):
    study_runs = planned(tmp_path, **STUDY | {"repeats": 1})
    train(study_runs, FIRST, "1")
    train(study_runs, SECOND, "2", slow=1.5)
    shutil.copy(tmp_path / "config" / "studies" / "made_up.yaml", tmp_path / "results" / "study.yaml")
    with versions([str(tmp_path / "results")]) as found:
        developed = develop(found)
        page = write_page(developed, tmp_path / "page").read_text()

    values = [line.values[1] for line in developed.lines["step_s"]]
    assert {value.verdict for value in values} == {OPEN}
    assert all(value.low < value.value < value.high for value in values)
    assert "no repeats" in page


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["results"], "does not say of which study it is"),
        (["made_up", "nowhere/else"], "no such pack, study or folder"),
        (["made_up", "config"], "has no folder `runs`"),
        (["made_up", "other"], "given the studies made_up, other; expected: results of one study"),
    ],
)
def test_what_cannot_be_followed_is_refused(project, tmp_path, capsys, given, said):
    study_file(tmp_path, **STUDY | {"name": "other"})
    with pytest.raises(SystemExit) as ended:
        main.main(["history", *given])

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_figure_names_what_changed_and_leaves_the_rest_grey():
    points = pd.DataFrame(
        [
            {
                "point": f"p{number}",
                "version": at,
                "value": value,
                "low": 0.9 * value,
                "high": 1.1 * value,
                "verdict": verdict,
            }
            for number, slow in enumerate((1.0, 1.0, 2.0))
            for at, (value, verdict) in enumerate(((1.0, ""), (slow, "worse" if slow > 1 else ALIKE)))
        ]
    )
    with style("column"):
        figure = draw(points, ["aaaaaaaa", "bbbbbbbb"])
        figure.draw_without_rendering()

    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["median of all points", "a point", "p2", "slower"]
    marks = {line.get_marker(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert marks["^"] == [2.0]
    assert marks["v"] == []
