"""`ddp-hpc diff RUN RUN`: what differs between two runs, and nothing else."""

import copy
import json

import pytest
from factory import write_run

from ddp_hpc.cli import main
from ddp_hpc.config.spec import load
from ddp_hpc.profiling import provenance

SPEC = {
    "model": "mlp", "dataset": "digits", "exchange": "ring", "world_size": 2, "batch_size": 16, "learning_rate": 0.1,
    "budget": {"steps": 10},
}  # fmt: skip
PROVENANCE = {
    "software": {"torch": "2.13.0", "numpy": "2.1", "cuda": None},
    "source": {"commit": "a" * 40, "dirty": False},
    "command": ["mpiexec", "-n", "2", "python", "results/runs/one"],
    "environment": {"OMP_NUM_THREADS": "1", "NCCL_ALGO": "Ring"},
    "slurm_job": "17",
    "startup": {"by_rank": [1.0, 2.0]},
    "ranks": [
        {"rank": rank, "host": "n1", "core_set": [rank], "threads": 1, "pid": 100 + rank, "cpu": "Xeon", "gpu": None,
         "clock": {"governor": "performance", "max_mhz": 3000.0}}
        for rank in range(2)
    ],
    "null_columns": {"energy_j": "no meter of energy is read"},
}  # fmt: skip


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project; `project(name, change)` adds a finished run, whose facts `change` may edit."""
    for folder in ("config/studies", "workflow"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "workflow" / "Snakefile").touch()
    monkeypatch.chdir(tmp_path)

    def add(name, change=lambda facts: None):
        facts = {
            "spec": dict(SPEC),
            "provenance": copy.deepcopy(PROVENANCE),
            "files": {"training/trainer.py": "1", "exchange/ring.py": "2"},
            "result": {"status": "ok", "step_s": 0.002, "final_loss": 0.5},
        }
        facts["provenance"]["command"][-1] = f"results/runs/{name}"
        change(facts)
        file = tmp_path / "results" / "runs" / name / "run.parquet"
        metadata = {"provenance": facts["provenance"], "files": facts["files"]}
        write_run(file, load(facts["spec"]), {"run": name} | facts["result"], metadata)
        return file.parent

    return add


def told(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main.main(["diff", *map(str, arguments)])
    captured = capsys.readouterr()
    return end.value.code, captured.out, captured.err


def as_json(capsys, *arguments):
    return json.loads(told(capsys, *arguments, "--json")[1])["differences"]


def test_nothing_differs_between_two_runs_of_the_same(project, capsys):
    """Their names, processes and start-up times do, by nature."""

    def other_process(facts):
        facts["provenance"]["ranks"][0]["pid"] = 999
        facts["provenance"]["startup"] = {"by_rank": [3.0, 3.0]}

    project("one")
    project("two", other_process)
    code, out, _ = told(capsys, "one", "two")

    assert code == 0
    assert out.splitlines() == ["A: one", "B: two", "nothing differs"]


@pytest.mark.parametrize(
    ("path", "value", "section", "name"),
    [
        (("spec", "learning_rate"), 0.5, "spec", "learning_rate"),
        (("spec", "model"), {"name": "mlp", "widths": [8]}, "spec", "model_options"),
        (("files", "exchange/ring.py"), "3", "code", "exchange/ring.py"),
        (("provenance", "software", "torch"), "2.14.0", "versions", "torch"),
        (("provenance", "software", "cuda"), "13.0", "versions", "cuda"),
        (("provenance", "source", "dirty"), True, "source", "dirty"),
        (("provenance", "ranks", 1, "host"), "n2", "hosts", "host"),
        (("provenance", "ranks", 0, "gpu"), {"uuid": "GPU-1"}, "hosts", "gpu.uuid"),
        (("provenance", "ranks", 1, "clock", "max_mhz"), 2000.0, "clocks", "clock.max_mhz"),
        (("provenance", "environment", "NCCL_ALGO"), "Tree", "environment", "NCCL_ALGO"),
        (("provenance", "environment", "OMP_PROC_BIND"), "true", "environment", "OMP_PROC_BIND"),
        (("provenance", "slurm_job"), "18", "job", "slurm_job"),
        (("provenance", "command", 2), "4", "job", "command"),
        (("provenance", "null_columns", "wait_s"), "no common clock", "what is null", "wait_s"),
        (("result", "step_s"), 0.003, "result", "step_s"),
    ],
)
def test_each_difference_is_found_in_its_section_and_is_the_only_one(project, capsys, path, value, section, name):
    def change(facts):
        *inner, last = path
        for key in inner:
            facts = facts[key]
        facts[last] = value

    project("one")
    project("two", change)
    found = as_json(capsys, "one", "two")
    _, out, _ = told(capsys, "one", "two")

    assert set(found) == {section}
    assert name in [one["name"] for one in found[section]]
    assert len(found[section]) == 1
    lines = out.splitlines()
    assert lines[lines.index(section) + 1].split()[0] == name


def test_what_the_ranks_do_not_share_is_listed_rank_by_rank(project, capsys):
    project("one")
    project("two", lambda facts: facts["provenance"]["ranks"][1].update(host="n2"))

    assert as_json(capsys, "one", "two")["hosts"] == [{"name": "host", "a": "n1", "b": ["n1", "n2"]}]


def test_results_come_with_their_change_and_code_with_a_way_to_see_it(project, capsys):
    def change(facts):
        facts["files"] = {"training/trainer.py": "9", "exchange/_pinned.py": "4"}
        facts["provenance"]["source"]["commit"] = "b" * 40
        facts["result"]["step_s"] = 0.003

    project("one")
    project("two", change)
    _, out, _ = told(capsys, "one", "two")

    assert "+50.00 %" in out
    assert [line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("  exchange/")] == [
        "is not in B",
        "is not in A",
    ]
    assert "git diff aaaaaaaaaaaa bbbbbbbbbbbb -- src/ddp_hpc/training/trainer.py src/ddp_hpc/exchange/ring.py" in out


def test_a_run_is_found_by_a_beginning_or_a_path(project, capsys):
    folder = project("ring-one-1111")
    project("ring-two-2222")

    assert told(capsys, "ring-o", folder)[0] == 0
    assert told(capsys, "ring-o", folder / "run.parquet")[0] == 0
    code, _, err = told(capsys, "ring", "ring-o")
    assert code == 2
    assert "2 finished runs begin so: ring-one-1111, ring-two-2222" in err
    assert "no finished run begins so" in told(capsys, "gloo", "ring-o")[2]
    assert "no finished run lies there" in told(capsys, "results/runs/gloo", "ring-o")[2]


def test_the_clock_is_what_linux_says_or_nothing(tmp_path):
    assert provenance._cpu_clock(tmp_path) is None
    (tmp_path / "scaling_governor").write_text("powersave\n")
    (tmp_path / "scaling_max_freq").write_text("2400000\n")
    assert provenance._cpu_clock(tmp_path) == {"governor": "powersave", "max_mhz": 2400.0}
