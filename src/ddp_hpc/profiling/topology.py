"""Where a rank sits in its node: NUMA nodes of its cores, and the network adapters, as Linux shows them.

Source: https://docs.kernel.org/admin-guide/abi-stable.html, below /sys/devices/system/node and /sys/class/infiniband.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ddp_hpc.system.files import text_of

SYS = Path("/sys")
ETHERNET = "1"  # types of a network device, by include/uapi/linux/if_arp.h


def numa_nodes(cores: Collection[int], root: Path = SYS) -> list[int] | None:
    """Return the NUMA nodes of these cores; None where Linux does not say."""
    folders = (root / "devices" / "system" / "node").glob("node[0-9]*")
    cores_of = {int(folder.name.removeprefix("node")): _numbers(text_of(folder / "cpulist")) for folder in folders}
    return sorted(node for node, own in cores_of.items() if own.intersection(cores)) or None


def _numbers(ranges: str) -> set[int]:
    """Return the numbers of e.g. `0-3,8`."""
    found = re.findall(r"(\d+)(?:-(\d+))?", ranges)
    return {number for first, last in found for number in range(int(first), int(last or first) + 1)}


def adapters(root: Path = SYS) -> list[dict[str, Any]] | None:
    """Return the network adapters whose link is up: name, kind, Gbit/s, NUMA node; None where there are none.

    An adapter with InfiniBand or RoCE is listed as such, and not as the Ethernet or IP device that it also is.
    """
    found = []
    for port in sorted((root / "class" / "infiniband").glob("*/ports/*")):
        if "ACTIVE" in text_of(port / "state"):
            layer, rate = text_of(port / "link_layer").strip(), re.match(r"[\d.]+", text_of(port / "rate"))
            kind = "RoCE" if layer == "Ethernet" else layer or "InfiniBand"
            found.append(_adapter(port.parents[1], kind, float(rate[0]) if rate else None))
    for device in sorted((root / "class" / "net").glob("*")):
        own = (device / "device").exists() and not (device / "device" / "infiniband").exists()
        if own and text_of(device / "type").strip() == ETHERNET and text_of(device / "operstate").strip() == "up":
            speed = text_of(device / "speed").strip()
            found.append(_adapter(device, "Ethernet", int(speed) / 1000 if speed.isdigit() else None))
    return found or None


def _adapter(folder: Path, kind: str, gbit_per_s: float | None) -> dict[str, Any]:
    node = text_of(folder / "device" / "numa_node").strip()
    return {
        "name": folder.name,
        "kind": kind,
        "gbit_per_s": gbit_per_s,
        "numa_node": int(node) if node.isdigit() else None,  # -1: none
    }
