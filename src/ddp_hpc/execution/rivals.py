"""What a run knows of those that it competes with while it trains: the least loss area of any that has ended."""

from collections.abc import Mapping
from typing import Any

from ddp_hpc.runs import beaten
from ddp_hpc.runs.attempt import Store


class Rivals:
    """The runs with which one competes, as `beaten.asked` has them. What has ended is read once."""

    def __init__(self, store: Store, asked: Mapping[str, Any]) -> None:
        self._store, self._asked = store, asked
        self._waiting = list(asked["runs"])
        self._least: beaten.Rival | None = None

    def limit(self, device: str) -> tuple[float, float, str] | None:
        """Return the area of the best on such a device, beyond which area another is beaten, and whose it is."""
        there = [run for run in self._waiting if self._store.run(run).has_record]
        self._waiting = [run for run in self._waiting if run not in there]
        rules = self._asked["loss_threshold"], self._asked["loss_window"]
        for run in there:
            found = beaten.rival(self._store, run, *rules, device)
            if found and (self._least is None or found.area < self._least.area):
                self._least = found
        if self._least is None:
            return None
        return self._least.area, self._asked["beyond"] * self._least.area, self._least.run
