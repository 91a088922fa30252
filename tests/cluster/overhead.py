"""What Slurm adds to a run: a grid of very short ones, each a job of its own, and all in one job. `make bench-slurm`.

Not a test: it takes a quarter of an hour for 216 points on two cores, and prints seconds.
"""

import sys
import tempfile
import time
from pathlib import Path

from cluster import MACHINE, Cluster, lacking, refused
from sandbox import Sandbox

STUDY = """
base: {{dataset: digits, model: {{name: mlp, widths: [8]}}, batch_size: 16, exchange: none, world_size: 1, device: cpu}}
grid: {{learning_rate: [{rates}], seed: [{seed}]}}
budget: {{steps: 1}}
tables: [runs]
figures: []
"""


def measure(points: int) -> None:
    """Start a cluster, run `points` runs in each way, and print what a run takes."""
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder))
        try:
            project = Sandbox.make(Path(folder) / "project", cluster.through)
            (project.root / "config" / "machines" / "test.yaml").write_text(MACHINE)
            for profile in ("slurm", "allocation"):
                project.edit(f"profiles/{profile}/profile.yaml", "machine: example", "machine: test")
            rates = ", ".join(f"{0.001 * (point + 1):g}" for point in range(points))
            for seed, way in enumerate(("slurm", "allocation")):
                project.study(way, STUDY.format(rates=rates, seed=seed))
                run = f"ddp-hpc run {way} --profile profiles/{way}"
                job = ["sbatch", "--wait", "--nodes=2", "--ntasks-per-node=8", "--time=60", "--output=job.log"]
                command = run.split() if way == "slurm" else [*job, f"--wrap={run}"]
                began = time.monotonic()
                done = project.call(*command, timeout=3600)
                took_s = time.monotonic() - began
                if done.returncode:
                    log = project.root / "job.log"
                    sys.exit(f"{way}: {done.stdout}{done.stderr}{log.read_text() if log.exists() else ''}")
                each = "each a job of its own" if way == "slurm" else "all in one job"
                print(f"{points} runs, {each}: {took_s:.0f} s, {took_s / points:.2f} s a run", flush=True)
        finally:
            cluster.stop()


if __name__ == "__main__":
    if reason := lacking() or refused():
        sys.exit(reason)
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else 216)
