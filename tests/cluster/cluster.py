"""A real Slurm of two nodes, for tests: `cluster.sh` from Python."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

SCRIPT = Path(__file__).with_name("cluster.sh")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "ip", "unshare", "nsenter")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

# a machine file of it
MACHINE = """
partitions:
  main: {nodes: 2, cores_per_node: 8, gpus_per_node: 4, memory_mb_per_node: 8000, max_minutes: 60}
  short: {nodes: 2, cores_per_node: 8, gpus_per_node: 4, memory_mb_per_node: 8000, max_minutes: 5}
launcher: env PMIX_MCA_psec=native srun --kill-on-bad-exit=1 --mpi=pmix
runtime_min: 10
retry_after_s: 12  # by then a dead node is known to be down
"""

# the plugin asks Slurm ever more seldom, up to every three minutes; a test cannot wait so long
PACE = """
from snakemake_executor_plugin_slurm import Executor
Executor.next_seconds_between_status_checks = property(lambda executor: 1, lambda executor, seconds: None)
"""


def lacking() -> str | None:
    """Return which programs lack for a cluster; None if none does."""
    missing = [program for program in PROGRAMS if not shutil.which(program, path=PATH)]
    missing += [] if list(Path("/usr/lib").glob("*/pmix2/lib")) else ["libpmix2"]
    return f"needs a Slurm, without {', '.join(missing)}: `make slurm`, as root, on Debian" if missing else None


def lacking_accounting() -> str | None:
    """Return which programs lack for a cluster that accounts for its jobs; None if none does."""
    missing = [program for program in ("slurmdbd", "mariadbd", "sacctmgr") if not shutil.which(program, path=PATH)]
    missing += [] if list(Path("/usr/lib").glob("*/slurm*/accounting_storage_mysql.so")) else ["slurm-wlm-mysql-plugin"]
    return f"needs a slurmdbd, without {', '.join(missing)}: `make slurm`, as root, on Debian" if missing else None


def refused() -> str | None:
    """Return why no cluster may be started here; None if one may."""
    if os.geteuid() != 0:
        return "needs root: every node of the cluster is a namespace"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "mount", "-t", "proc", "proc", "/proc"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"needs namespaces, which are refused here: {tried.stderr.strip()}" if tried.returncode else None


class Cluster:
    """A running cluster: nodes `login`, `node1`, `node2`, ...; it ends with this process, however that ends.

    Args:
        root: its folder, with a short path: sockets lie in it.
        settings: of `cluster.sh`, e.g. GPUS="2", PARTITIONS="gpu:60".

    Raises:
        RuntimeError: it did not come up; with the daemons' last words.
    """

    def __init__(self, root: Path, **settings: str) -> None:
        self.root = root
        self.environment = os.environ | {"CLUSTER_ROOT": str(root)}
        self.environment |= {f"CLUSTER_{name}": value for name, value in settings.items()}
        self.nodes = [f"node{i + 1}" for i in range(int(settings.get("NODES", "2")))]
        self._log = root / "cluster.log"
        with self._log.open("w") as log:
            self._server = subprocess.Popen(
                [SCRIPT, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=self.environment
            )
        assert self._server.stdout is not None
        if self._server.stdout.readline() != b"up\n":
            raise RuntimeError(f"the cluster did not come up:\n{self.said()}")

    def stop(self) -> None:
        """Stop every daemon and all that runs on the nodes."""
        self._server.communicate(timeout=60)

    def said(self) -> str:
        """Return the last lines of all logs."""
        logs = [self._log, *sorted((self.root / "log").glob("*.log"))]
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-2000:]}" for log in logs if log.exists())

    @property
    def through(self) -> tuple[str, ...]:
        """What stands before a command to run it on the login node."""
        return ("env", f"CLUSTER_ROOT={self.root}", str(SCRIPT), "run")

    def run(self, *command: str, timeout: float = 60) -> str:
        """Run a command on the login node and return what it printed."""
        return self._call("run", *command, timeout=timeout)

    def on(self, node: str, *command: str, timeout: float = 60) -> str:
        """Run a command on a node and return what it printed."""
        return self._call("on", node, *command, timeout=timeout)

    def kill_node(self, node: str) -> None:
        """Take the power from a node; Slurm notices within about 15 s."""
        self._call("kill-node", node)

    def start_node(self, node: str) -> None:
        """Give a killed node its power again."""
        self._call("start-node", node)

    def stop_controller(self) -> None:
        """End slurmctld; jobs go on."""
        self._call("stop-controller")

    def start_controller(self) -> None:
        """Start slurmctld from its saved state."""
        self._call("start-controller")

    def stop_accounting(self) -> None:
        """End slurmdbd; jobs are not accounted for until it is back."""
        self._call("stop-accounting")

    def jobs(self, states: str = "all") -> dict[int, dict[str, str]]:
        """Return the jobs that Slurm remembers, by number: state, reason, name, comment, nodes, tasks."""
        keys = ("JobID", "State", "Reason", "Name", "Comment", "NodeList", "NumNodes", "NumTasks")
        wide = ",".join(f"{key}:.300" for key in keys)
        table = self.run("squeue", "--noheader", f"--states={states}", f"--Format={wide}")
        rows = [[line[at : at + 300].strip() for at in range(0, 300 * len(keys), 300)] for line in table.splitlines()]
        return {int(row[0]): dict(zip(keys, row, strict=True)) for row in rows}

    def gpus(self, job: int) -> int:
        """Return how many GPUs a job was granted, in all."""
        found = re.search(r"JOB_GRES=gpu:(\d+)", self.run("scontrol", "show", "job", "--details", str(job)))
        return int(found[1]) if found else 0

    def heal(self) -> None:
        """End all jobs and bring back what a test has killed; every node is idle then."""
        alive = {node: (self.root / "run" / f"{node}.pid").read_text().strip() for node in self.nodes}
        for node, pid in alive.items():
            if not Path(f"/proc/{pid}/ns/net").exists():
                self.start_node(node)
        if self._call("run", "pgrep", "slurmctld", check=False) == "":
            self.start_controller()
        deadline = time.monotonic() + 60
        while True:
            self._call("run", "scancel", "--user=root", check=False)
            idle = self._call("run", "sinfo", "--noheader", "--Node", "--states=idle", "--format=%N", check=False)
            if set(idle.split()) == set(self.nodes):
                return
            assert time.monotonic() < deadline, f"not all nodes are idle: {idle!r}\n{self.said()}"
            time.sleep(0.2)

    def _call(self, *arguments: str, timeout: float = 60, check: bool = True) -> str:
        done = subprocess.run(
            [SCRIPT, *arguments], env=self.environment, text=True, capture_output=True, timeout=timeout, check=False
        )
        assert done.returncode == 0 or not check, f"{' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout
