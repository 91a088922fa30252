"""What a run asks of a cluster: the sbatch line of each kind of run, and what a machine cannot take."""

import re
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ddp_hpc.config import spec
from ddp_hpc.config.machine import Machine, MachineError
from ddp_hpc.slurm.resources import ImpossibleError, Past, request
from ddp_hpc.slurm.sbatch import SBATCH, launch_line, sbatch

submit_string = pytest.importorskip("snakemake_executor_plugin_slurm.submit_string")
plugin_utils = pytest.importorskip("snakemake_executor_plugin_slurm.utils")
validation = pytest.importorskip("snakemake_executor_plugin_slurm.validation")

MINIMAL = {
    "model": "mlp",
    "dataset": "digits",
    "exchange": "ring",
    "batch_size": 16,
    "learning_rate": 0.1,
    "budget": {"steps": 4},
}
GPU_NODES = {"nodes": 8, "cores_per_node": 64, "gpus_per_node": 4, "memory_mb_per_node": 400_000, "max_minutes": 1440}
CPU_NODES = {"nodes": 10, "cores_per_node": 48, "memory_mb_per_node": 96_000, "max_minutes": 2880}
CLUSTER = {"partitions": {"gpu": GPU_NODES, "cpu": CPU_NODES}, "launcher": "srun --mpi=pmix"}


def run(world_size: int, **fields) -> spec.RunSpec:
    baseline = {"exchange": "none"} if world_size == 1 else {}
    return spec.load(MINIMAL | baseline | {"world_size": world_size} | fields)


def machine(**fields) -> Machine:
    return Machine.model_validate(CLUSTER | fields)


class Asked(dict):
    __getattr__ = dict.__getitem__


def line(asked, cluster: Machine) -> tuple[str, str]:
    """Return the part of the plugin's sbatch line that our resources decide, and how the ranks are started."""
    resources = {name: value for name, value in sbatch(asked, cluster, cluster.launcher).items() if value is not None}
    assert resources.keys() <= set(SBATCH)
    job = SimpleNamespace(resources=Asked(resources), threads=1)
    validation.validate_slurm_extra(job)
    fixed = {"run_uuid": "name", "slurm_logfile": "log", "comment_str": "rule", "account": "", "workdir": None}
    call = submit_string.get_submit_command(job, fixed | {"partition": f"-p {resources['slurm_partition']}"})
    call += plugin_utils.set_gres_string(job)
    return " ".join(call.partition("--comment rule")[2].split()), resources["mpi"]


GPU = "-p gpu -t 60 --mem"
SRUN = "srun --mpi=pmix"
WARN = "--signal=USR1@60"  # to the ranks, a minute before their time is up

# spec: the sbatch line, and the launcher's
LINES = {
    "1 GPU": (
        run(1),
        f"{GPU} 100000 --nodes=1 --cpus-per-task=16 --ntasks-per-node=1 --gpus-per-node=1 {WARN} --gpus=1",
        "",
    ),
    "2 GPUs": (
        run(2),
        f"{GPU} 200000 --nodes=1 --ntasks=2 --cpus-per-task=16 --ntasks-per-node=2 --gpus-per-node=2 {WARN} --gpus=2",
        f"{SRUN} -N 1 -n 2 -c 16 --ntasks-per-node=2 --distribution=block",
    ),
    "4 GPUs packed": (
        run(4, placement="packed"),
        f"{GPU} 400000 --nodes=1 --ntasks=4 --cpus-per-task=16 --ntasks-per-node=4 --gpus-per-node=4 {WARN} --gpus=4",
        f"{SRUN} -N 1 -n 4 -c 16 --ntasks-per-node=4 --distribution=block",
    ),
    "4 GPUs spread": (
        run(4, placement="spread"),
        f"{GPU} 100000 --nodes=4 --ntasks=4 --cpus-per-task=16 --ntasks-per-node=1 --gpus-per-node=1 {WARN} --gpus=4",
        f"{SRUN} -N 4 -n 4 -c 16 --ntasks-per-node=1 --distribution=block",
    ),
    "4 GPUs, 2 to a node": (
        run(4, placement="spread", ranks_per_node=2),
        f"{GPU} 200000 --nodes=2 --ntasks=4 --cpus-per-task=16 --ntasks-per-node=2 --gpus-per-node=2 {WARN} --gpus=4",
        f"{SRUN} -N 2 -n 4 -c 16 --ntasks-per-node=2 --distribution=block",
    ),
    "6 GPUs, no whole nodes": (
        run(6, placement="packed"),
        f"{GPU} 400000 --nodes=2 --ntasks=6 --cpus-per-task=16 {WARN} --gpus=6",
        f"{SRUN} -N 2 -n 6 -c 16 --distribution=block,Pack",
    ),
    "8 GPUs": (
        run(8),
        f"{GPU} 400000 --nodes=2 --ntasks=8 --cpus-per-task=16 --ntasks-per-node=4 --gpus-per-node=4 {WARN} --gpus=8",
        f"{SRUN} -N 2 -n 8 -c 16 --ntasks-per-node=4 --distribution=block",
    ),
    "16 GPUs packed": (
        run(16, placement="packed"),
        f"{GPU} 400000 --nodes=4 --ntasks=16 --cpus-per-task=16 --ntasks-per-node=4 --gpus-per-node=4 {WARN} --gpus=16",
        f"{SRUN} -N 4 -n 16 -c 16 --ntasks-per-node=4 --distribution=block",
    ),
    "16 GPUs, 2 to a node": (
        run(16, placement="spread", ranks_per_node=2),
        f"{GPU} 200000 --nodes=8 --ntasks=16 --cpus-per-task=16 --ntasks-per-node=2 --gpus-per-node=2 {WARN} --gpus=16",
        f"{SRUN} -N 8 -n 16 -c 16 --ntasks-per-node=2 --distribution=block",
    ),
    "CPU ranks on a GPU node": (
        run(2, device="cpu"),
        f"{GPU} 12500 --nodes=1 --ntasks=2 --cpus-per-task=1 --ntasks-per-node=2 {WARN}",
        f"{SRUN} -N 1 -n 2 -c 1 --ntasks-per-node=2 --distribution=block",
    ),
    "1 CPU rank": (
        run(1, partition="cpu"),
        f"-p cpu -t 60 --mem 2000 --nodes=1 --ntasks=1 --cpus-per-task=1 --ntasks-per-node=1 {WARN}",
        "",
    ),
    "CPU ranks with threads": (
        run(16, partition="cpu", threads_per_rank=6),
        f"-p cpu -t 60 --mem 96000 --nodes=2 --ntasks=16 --cpus-per-task=6 --ntasks-per-node=8 {WARN}",
        f"{SRUN} -N 2 -n 16 -c 6 --ntasks-per-node=8 --distribution=block",
    ),
    "CPU ranks spread": (
        run(4, partition="cpu", placement="spread", ranks_per_node=2),
        f"-p cpu -t 60 --mem 4000 --nodes=2 --ntasks=4 --cpus-per-task=1 --ntasks-per-node=2 {WARN}",
        f"{SRUN} -N 2 -n 4 -c 1 --ntasks-per-node=2 --distribution=block",
    ),
}


@pytest.mark.parametrize(("asking", "submitted", "started"), LINES.values(), ids=LINES)
def test_n_ranks_ask_for_n_tasks_and_n_gpus_in_all(asking, submitted, started):
    assert line(request(asking, machine()), machine()) == (submitted, started)


def test_exclusive_asks_for_whole_nodes_and_their_memory():
    submitted, _ = line(request(run(2), machine()), machine())
    alone = machine(memory="exclusive")
    whole, _ = line(request(run(2), alone), alone)
    assert whole == submitted.replace("200000", "400000").replace("--signal", "--exclusive --signal")


def test_short_jobs_are_not_warned_of_their_end():
    """Slurm may warn two minutes before the end, which is too much of them."""
    hasty = machine(runtime_min=9)
    assert "--signal" not in line(request(run(2), hasty), hasty)[0]


def test_a_small_share_of_memory_is_made_up_to_what_a_job_and_its_ranks_take_in_any_case():
    """A rank of a small model takes 263 MB, the two Snakemakes of a job 155 MB each."""
    lean = machine(partitions={"cpu": CPU_NODES | {"memory_mb_per_node": 24_000}})
    assert request(run(1), lean).mem_mb == 1000
    assert request(run(4), lean).mem_mb == 2500
    assert request(run(48), lean).mem_mb == 24_000, "no more than there is"


def test_what_the_machine_file_adds_stands_in_the_line():
    site = machine(account="lab", qos="long", constraint="a100&nvlink", extra="--reservation=ours --mail-type=END")
    asked = request(run(2), site)
    submitted, _ = line(asked, site)
    assert " -C 'a100&nvlink' --qos=long " in submitted
    assert submitted.endswith("--gpus-per-node=2 --signal=USR1@60 --reservation=ours --mail-type=END --gpus=2")
    assert sbatch(asked, site, "srun")["slurm_account"] == "lab"


def test_a_type_of_gpu_is_named_wherever_gpus_are():
    """Slurm refuses a line that names it in one place only."""
    typed = machine(partitions={"gpu": GPU_NODES | {"gpu_type": "a100"}})
    submitted, _ = line(request(run(2), typed), typed)
    assert "--gpus-per-node=a100:2" in submitted
    assert "--gpus=a100:2" in submitted
    longest = machine(partitions={"gpu": GPU_NODES | {"gpu_type": "Tesla_V100.32"}})
    assert "--gpus=Tesla_V100.32:2" in line(request(run(2), longest), longest)[0], "the plugin takes all that we do"


@pytest.mark.parametrize(
    ("launcher", "started"),
    [
        ("mpiexec", "mpiexec -n 8"),
        ("mpirun --bind-to none", "mpirun --bind-to none -n 8"),
        (
            "env A=b /usr/bin/srun --mpi=pmix",
            "env A=b /usr/bin/srun --mpi=pmix -N 2 -n 8 -c 16 --ntasks-per-node=4 --distribution=block",
        ),
    ],
)
def test_the_launcher_is_told_how_many_ranks_and_srun_also_where(launcher, started):
    assert launch_line(request(run(8), machine()), launcher) == started
    assert shlex.split(started)


def test_ranks_that_may_share_gpus_do_so_only_where_gpus_are_too_few():
    """8 ranks on 2 nodes of one GPU: 4 on each, with 2 of its 8 cores."""
    small = machine(partitions={"gpu": GPU_NODES | {"nodes": 2, "gpus_per_node": 1, "cores_per_node": 8}})
    asked = request(run(8, share_gpu=True), small)
    assert (asked.nodes, asked.ranks_per_node, asked.gpus, asked.cores_per_rank) == (2, 4, 2, 2)
    assert request(run(4, share_gpu=True), machine()) == request(run(4), machine())


IMPOSSIBLE = {
    "too many nodes": (run(64), ["world_size=64, 4 to a node needs 16 nodes", "gives 8", "up to 32 ranks"]),
    "fits elsewhere": (
        run(64, device="cpu", threads_per_rank=32),
        ["2 to a node needs 32 nodes", "gives 8", "no other partition could take it"],
    ),
    "spread too far": (
        run(16, placement="spread"),
        ["world_size=16, spread, 1 to a node, needs 16 nodes", "up to 8 ranks", "no other partition"],
    ),
    "too many on a node": (
        run(16, placement="spread", ranks_per_node=8),
        ["ranks_per_node=8", "has 4 GPUs", "expected: 1 to 4", "it would fit partition cpu"],
    ),
    "no GPU": (run(2, partition="cpu", device="cuda"), ["partition cpu have no GPU", "it would fit partition gpu"]),
    "CPU only": (
        run(2, exchange="gloo"),
        ["exchange 'gloo' works on the CPU only", "give `device: cpu`", "would fit partition cpu"],
    ),
    "one node": (
        run(8, exchange="shared_memory", device="cpu", threads_per_rank=32),
        ["'shared_memory' works within one node", "needs 4", "up to 2 ranks"],
    ),
    "threads": (run(2, threads_per_rank=32), ["threads_per_rank=32", "64 cores for 4 ranks", "up to 16"]),
    "threads of a node": (run(1, partition="cpu", threads_per_rank=64), ["has 48 cores", "no other partition"]),
    "a long budget": (run(1, budget={"seconds": 90_000}), ["90000", "after 1440 minutes", "would fit partition cpu"]),
}


@pytest.mark.parametrize(("asking", "said"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_the_machine_cannot_take_is_an_error_that_says_what_would_fit(asking, said):
    with pytest.raises(ImpossibleError) as error:
        request(asking, machine())
    for part in said:
        assert part in str(error.value)


def test_an_unknown_partition_is_told_with_those_that_there_are():
    with pytest.raises(MachineError, match=r"no partition 'gpus' \(did you mean 'gpu'\?\); expected: gpu, cpu"):
        request(run(2, partition="gpus"), machine())


def test_a_study_that_asks_for_more_time_than_there_is_is_told():
    with pytest.raises(ImpossibleError, match=r"runtime_min=2000, .* after 1440 minutes; it would fit partition cpu"):
        request(run(2), machine(), runtime_min=2000)


def minutes(**given) -> int:
    fields = given.pop("fields", {})
    return request(run(2, **fields), machine(), **given).runtime_min


def test_time_is_that_of_runs_like_it_with_a_margin_else_the_studys_else_the_machines():
    assert minutes(measured_s=[600, 1200], runtime_min=90) == 35, "the longest, 20 minutes, x 1.5 and 5 more"
    assert minutes(runtime_min=90) == 90
    assert minutes() == 60
    assert minutes(measured_s=[100_000]) == 1440, "no more than the partition gives"
    assert minutes(fields={"budget": {"seconds": 7200}}) == 125, "a budget of two hours needs more than one"
    assert request(run(2), machine(partitions={"short": GPU_NODES | {"max_minutes": 30}})).runtime_min == 30


def test_after_a_timeout_twice_the_time_is_asked_for_and_after_oom_twice_the_memory():
    out_of_time = Past(status="timeout", runtime_min=60, mem_mb=200_000)
    assert minutes(past=[out_of_time]) == 120
    assert minutes(past=[out_of_time, replace(out_of_time, runtime_min=120)]) == 240
    assert minutes(past=[out_of_time], measured_s=[12_000]) == 305, "what was measured since is more"
    assert minutes(past=[replace(out_of_time, runtime_min=1000)]) == 1440

    out_of_memory = Past(status="oom_host", runtime_min=60, mem_mb=150_000)
    grown = request(run(2), machine(), past=[out_of_memory, Past(status="crashed", mem_mb=999_999)])
    assert (grown.mem_mb, grown.runtime_min) == (300_000, 60)
    assert request(run(2), machine(), past=[replace(out_of_memory, mem_mb=300_000)]).mem_mb == 400_000, "all there is"


def test_the_plugin_would_refuse_what_the_machine_file_refuses_in_extra():
    """Its own list, so that a new version that manages more is noticed."""
    for pattern in validation.get_forbidden_slurm_options():
        option = re.sub(r"\\s\??|\[=|\]", "", pattern.split("|")[0])
        if option in ("--workdir", "--clusters"):
            continue  # not asked for by us
        with pytest.raises(ValueError, match="is set by each run's request"):
            machine(extra=f"{option}=1")
