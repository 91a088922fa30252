"""Nodes on this machine whose links have a set rate: network namespaces, see `nodes.sh`."""

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from ddp_hpc.system.process import path_with_own_scripts

SCRIPT = Path(__file__).with_name("nodes.sh")
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mpiexec": "Open MPI"}
PROBE = (
    "ip link add probe0 type veth peer name probe1 && tc qdisc add dev probe0 root tbf rate 1mbit burst 8kb limit 64kb"
)


def lacking() -> str | None:
    """Return what lacks here for nodes with shaped links; None if nothing does."""
    path = os.pathsep.join([path_with_own_scripts(), "/usr/sbin", "/sbin"])
    if missing := [
        f"{program} ({package})" for program, package in PROGRAMS.items() if not shutil.which(program, path=path)
    ]:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "needs root: every node is a namespace with a network of its own"
    environment = os.environ | {"PATH": path}
    version = _said(["mpiexec", "--version"], environment)
    if "Open MPI" not in version:
        return f"needs the mpiexec of Open MPI, found: {version.strip().splitlines()[:1]}"
    said = _said(["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "bash", "-c", PROBE], environment)
    return f"this machine refuses a namespace or a shaped link: {said.strip()}" if said.strip() else None


def _said(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stdout + done.stderr


class ShapedNodes:
    """So many nodes, each behind a link of so many Mbit/s in either direction, while the context lasts."""

    def __init__(self, count: int, mbit_per_s: float) -> None:
        self._settings = {"NODES_COUNT": str(count), "NODES_RATE": f"{mbit_per_s:g}mbit"}

    def __enter__(self) -> "ShapedNodes":
        """Start them; raise a RuntimeError with what was said if they do not start."""
        self._root = tempfile.TemporaryDirectory(prefix="ddp-hpc-nodes-")
        self._settings["NODES_ROOT"] = self._root.name
        self._server = subprocess.Popen(
            [SCRIPT, "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | self._settings,
        )
        assert self._server.stdout is not None
        if self._server.stdout.readline() != "up\n":
            _, said = self._server.communicate()
            self._root.cleanup()
            raise RuntimeError(f"the nodes did not start: {said.strip()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all that runs on them."""
        self._server.communicate(timeout=60)
        self._root.cleanup()

    @property
    def launcher(self) -> str:
        """The command that starts a rank on each of the first nodes, without `-n`."""
        return shlex.join(
            ["env", *(f"{name}={value}" for name, value in self._settings.items()), str(SCRIPT), "mpiexec"]
        )

    @property
    def dropped(self) -> int:
        """How many packets the links have dropped since they are there."""
        done = subprocess.run(
            [SCRIPT, "dropped"], env=os.environ | self._settings, capture_output=True, text=True, check=True
        )
        return int(done.stdout)
