"""Energy of the processors by RAPL, where the kernel shows it and lets us read it.

Source: https://www.kernel.org/doc/html/latest/power/powercap/powercap.html
"""

from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


class CpuPackages:
    """The processor packages of this node."""

    def __init__(self, root: Path = POWERCAP) -> None:
        """Look for packages below `root`, where Linux shows them."""
        self.reason = "RAPL: this node shows no processor package"  # why they cannot be read; empty if they can
        self._files: list[tuple[Path, float]] = []  # and after how many joules they start again
        try:
            names = set[str]()  # a processor may be shown twice: as intel-rapl, and as intel-rapl-mmio
            for zone in sorted(root.glob("*:*"), key=lambda zone: ("mmio" in zone.name, zone)):
                name = (zone / "name").read_text().strip()
                if name.startswith("package-") and name not in names:
                    (zone / "energy_uj").read_text()
                    self._files.append((zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()) / 1e6))
                    names.add(name)
                    self.reason = ""
        except (OSError, ValueError) as error:
            self.reason, self._files = f"RAPL: {error}", []
        self._last = [0.0] * len(self._files)
        self._joules = 0.0  # of all packages, since some moment

    def read(self) -> float | None:
        """Return the joules of all packages since some moment; None if they cannot be read now."""
        try:
            now = [int(file.read_text()) / 1e6 for file, _ in self._files]
        except (OSError, ValueError):
            return None
        for joules, before, (_, range_j) in zip(now, self._last, self._files, strict=True):
            self._joules += joules - before + (range_j if joules < before else 0.0)
        self._last = now
        return self._joules if self._files else None
