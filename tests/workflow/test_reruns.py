"""Which edit makes which runs train again: the table in CONTRIBUTING.md, line by line.

`plan` and `snakemake -n` must agree, also when .snakemake is gone.
"""

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from sandbox import Sandbox

from ddp_hpc.runs.identity import MEASUREMENT_VERSION

STUDY = """
base: {dataset: digits, model: mlp, batch_size: 16, threads_per_rank: 1}
budget: {steps: 20}
grid:
  - {exchange: none, world_size: 1, learning_rate: [0.1, 0.5]}
  - {exchange: [ring, mpi_allreduce], world_size: 2, learning_rate: [0.1, 0.5]}
  - {exchange: ring, world_size: 2, learning_rate: 0.5, dataset: step_function, model: neuron}
tables: [runs, winners, areas, scaling, phases]
figures: [speedup, heat_map, phases]
"""
RUNS = 7


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Sandbox:
    """A study whose runs have all finished."""
    sandbox = Sandbox.make(tmp_path_factory.mktemp("finished") / "project")
    sandbox.study("edits", STUDY)
    sandbox.finish("edits")
    assert len(sandbox.plan("edits")) == RUNS
    return sandbox


@pytest.fixture
def project(finished, tmp_path) -> Sandbox:
    """A copy of it to edit, with new time stamps: a copied or cloned results/ is as good as the original."""
    shutil.copytree(finished.root, tmp_path / "project", copy_function=shutil.copyfile)
    return Sandbox(tmp_path / "project")


def trained(project: Sandbox) -> list[dict]:
    """The planned items that would be trained, on which plan and snakemake agree, with and without .snakemake."""
    items = [item for item in project.plan("edits") if item["action"] not in ("kept", "running")]
    shutil.rmtree(project.root / ".snakemake", ignore_errors=True)
    assert project.snakemake_would_train("edits") == {item["run"] for item in items}
    return items


def comment(project: Sandbox) -> None:
    for file in ("exchange/ring.py", "models/mlp.py", "training/trainer.py", "data/digits.py"):
        path = project.package / file
        text = path.read_text()
        assert text.startswith('"""')
        end = text.index('"""', 3) + 3
        path.write_text('"""Another docstring."""\n# and a comment\n' + text[end:])


def formatting(project: Sandbox) -> None:
    for file in ("exchange/ring.py", "training/trainer.py"):
        path = project.package / file
        path.write_text(path.read_text().replace("\n\n", "\n\n\n").replace("  # ", "      # "))


def touch(project: Sandbox) -> None:
    for path in project.package.rglob("*.py"):
        path.touch()


def profile(project: Sandbox) -> None:
    project.edit(
        "profiles/default/profile.yaml",
        "cores: all",
        "cores: 1\ndefault-resources:\n  mem_mb: 123\n  slurm_partition: other",
    )


def grid_order(project: Sandbox) -> None:
    project.edit(
        "config/studies/edits.yaml", "[ring, mpi_allreduce], world_size: 2", "[mpi_allreduce, ring], world_size: 2.0"
    )


def number_spelling(project: Sandbox) -> None:
    project.edit("config/studies/edits.yaml", "learning_rate: [0.1, 0.5]", "learning_rate: [5e-1, 0.10]")


def rule_text(project: Sandbox) -> None:
    project.edit("src/ddp_hpc/workflow/rules/train.smk", "--time-limit-min", "--launcher '' --time-limit-min")


def meter(project: Sandbox) -> None:
    project.append("src/ddp_hpc/profiling/provenance.py", "\nNEW_METER = 1\n")


def figure(project: Sandbox) -> None:
    project.append("src/ddp_hpc/analysis/figures/speedup.py", "\nNEW = 1\n")


def record_keeping(project: Sandbox) -> None:
    project.append("src/ddp_hpc/execution/supervisor.py", "\nNEW = 1\n")


def new_field(project: Sandbox) -> None:
    project.edit(
        "src/ddp_hpc/config/spec.py",
        "    device: Device | None = Field(",
        "    colour: Int = Field(3)\n    device: Device | None = Field(",
    )


def test_edits_without_meaning_for_the_training_rerun_nothing(project):
    edits = (comment, formatting, touch, profile, grid_order, number_spelling)
    for edit in (*edits, rule_text, meter, figure, record_keeping, new_field):
        edit(project)
        assert project.to_train("edits") == set(), edit.__name__

    assert trained(project) == []


def test_a_copy_of_the_results_is_as_good_as_the_original(project, finished):
    record = Path("results/runs") / finished.plan("edits")[0]["run"] / "run.parquet"
    assert (project.root / record).stat().st_mtime_ns != (finished.root / record).stat().st_mtime_ns

    assert trained(project) == []


def test_one_more_learning_rate_runs_its_points_only(project):
    project.edit(
        "config/studies/edits.yaml",
        "mpi_allreduce], world_size: 2, learning_rate: [0.1, 0.5]",
        "mpi_allreduce], world_size: 2, learning_rate: [0.1, 0.5, 0.9]",
    )

    new = trained(project)

    assert [item["spec"]["learning_rate"] for item in new] == [0.9, 0.9]
    assert {item["spec"]["exchange"] for item in new} == {"ring", "mpi_allreduce"}
    assert all(item["reason"] == "learning_rate 0.9 (nearest run: 0.5)" for item in new), new


@pytest.mark.parametrize(
    ("file", "concerned"),
    [
        ("exchange/ring.py", lambda spec: spec["exchange"] == "ring"),
        ("models/mlp.py", lambda spec: spec["model"] == "mlp"),
        ("data/step_function.py", lambda spec: spec["dataset"] == "step_function"),
        ("training/trainer.py", lambda spec: True),
        ("training/optimizers.py", lambda spec: True),
    ],
)
def test_code_of_a_choice_reruns_the_points_that_use_it_and_reverting_finds_the_old_results(project, file, concerned):
    before = (project.package / file).read_text()
    project.append(f"src/ddp_hpc/{file}", "\nCHANGED = 1\n")

    changed = trained(project)

    expected = [item["run"].rsplit("-", 1)[0] for item in project.plan("edits") if concerned(item["spec"])]
    assert [item["run"].rsplit("-", 1)[0] for item in changed] == expected
    assert all(item["action"] == "changed" and item["reason"] == f"{file} has changed" for item in changed), changed

    (project.package / file).write_text(before)
    assert project.to_train("edits") == set()


def test_the_code_of_every_run_can_be_got_back_after_an_edit(project):
    before = (project.package / "models/mlp.py").read_bytes()
    project.append("src/ddp_hpc/models/mlp.py", "\nCHANGED = 1\n")
    assert project.call("ddp-hpc", "plan", "edits", "--write").returncode == 0
    texts = set()
    for plan in (project.root / "results" / "runs").glob("*/spec.json"):
        files = json.loads(plan.read_text())["files"]
        texts.add(
            (project.root / "results" / "code" / files["models/mlp.py"]).read_bytes()
            if "models/mlp.py" in files
            else b""
        )
    assert texts == {before, before + b"\nCHANGED = 1\n", b""}


def test_the_measurement_version_reruns_all(project):
    project.edit(
        "src/ddp_hpc/runs/identity.py", f"MEASUREMENT_VERSION = {MEASUREMENT_VERSION}", "MEASUREMENT_VERSION = 99"
    )

    changed = trained(project)

    assert len(changed) == RUNS
    assert all(item["reason"] == "MEASUREMENT_VERSION has changed" for item in changed)


def test_a_change_of_a_default_of_an_option_is_a_change_of_code(project):
    """Old hashes would otherwise mean something else."""
    source = (project.package / "models" / "mlp.py").read_text()
    old = source[source.index("widths: ") :].split(" = ")[1].split(")")[0] + ")"
    project.edit("src/ddp_hpc/models/mlp.py", f" = {old}", " = (7, 7)")

    assert {item["spec"]["model"] for item in trained(project)} == {"mlp"}


def test_runs_no_longer_planned_stay_in_the_store_and_out_of_the_plan(project):
    before = {item["run"] for item in project.plan("edits")}
    project.edit("config/studies/edits.yaml", "[ring, mpi_allreduce]", "[ring]")

    assert trained(project) == []
    gone = before - {item["run"] for item in project.plan("edits")}
    assert len(gone) == 2
    assert all((project.root / "results" / "runs" / run / "run.parquet").exists() for run in gone)


def test_two_studies_share_the_runs_of_a_shared_point(project):
    project.study(
        "other",
        "base: {dataset: digits, model: mlp, batch_size: 16, threads_per_rank: 1, exchange: ring}\n"
        "budget: {steps: 20}\ngrid: {world_size: 2, learning_rate: [0.5, 0.7]}\n",
    )

    assert [item["action"] for item in project.plan("other")] == ["kept", "new"]


def shown_by_snakemake(project) -> set[str]:
    """The results in Snakemake's own report, each with its caption."""
    done = project.call("snakemake", "--config", "studies=[edits]", "--report", "shown.zip")
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(project.root / "shown.zip") as report:
        text = report.read("shown/report.html").decode()
        files = [Path(name) for name in report.namelist() if "data/raw" in name]
    assert "Winners: the best point of each group by the rule" in text
    assert (project.root / "results/studies/edits/figures/speedup.txt").read_text().split(".")[0] in text
    assert all(f'"{name}"' in text for name in ("edits", "Tables", "Figures", "Page"))
    return {file.stem for file in files if file.suffix in (".csv", ".svg", ".html")}


def test_tables_and_figures_are_made_anew_only_where_something_changed(project):
    folder = project.root / "results" / "studies" / "edits"

    def dates() -> dict[Path, int]:
        return {
            file: file.stat().st_mtime_ns for form in ("parquet", "svg", "html") for file in folder.rglob(f"*.{form}")
        }

    def made(code: int = 0) -> set[str]:
        before = dates()
        done = project.call("snakemake", "-c2", "--config", "studies=[edits]")
        assert done.returncode == code, done.stdout + done.stderr
        assert (done.stdout + done.stderr).count("localrule outputs:") <= 1, "one job, however much there is to make"
        return {file.stem for file, date in dates().items() if before.get(file) != date}

    everything = made()
    assert everything == {"runs", "winners", "areas", "scaling", "phases", "speedup", "heat_map", "index"}
    assert made() == set()
    assert shown_by_snakemake(project) == everything

    figure(project)
    assert made() == {"speedup", "index"}

    of_phases = {
        path.stem
        for path in (project.package / "analysis" / "figures").glob("*.py")
        if not path.stem.startswith("_") and '"phases"' in path.read_text().split("INPUTS")[-1].split("\n")[0]
    }
    fault = "\n\ndef build(study_runs):\n    raise ValueError('no day like today')\n"
    project.append("src/ddp_hpc/analysis/tables/phases.py", fault)
    project.append("src/ddp_hpc/analysis/tables/scaling.py", "\nNEW = 1\n")
    assert {"scaling", "index"} <= made(code=1), "one that fails keeps none of the others from being made"
    page = (folder / "report" / "index.html").read_text()
    assert "Tables that the study asks for are not there: phases;" in page
    assert "The figure phases has not been drawn." in page
    logs = (project.root / "logs" / "outputs").glob("edits-*.log")
    assert any("table phases: no day like today" in log.read_text() for log in logs)

    project.edit("src/ddp_hpc/analysis/tables/phases.py", fault, "\nNEW = 1\n")
    assert made() == {"phases", "index"} | of_phases

    (folder / "tables" / "runs.parquet").unlink()
    shutil.rmtree(project.root / ".snakemake")
    assert made() == {"runs", "index"}
    assert made() == set()


def test_a_damaged_record_trains_its_run_again(project):
    one, other, *_ = (project.root / "results" / "runs" / item["run"] for item in project.plan("edits"))
    (one / "steps.parquet").unlink()
    (other / "run.parquet").write_bytes(b"")

    assert {item["run"] for item in trained(project)} == {one.name, other.name}
