"""Amdahl's law, and Extra-P where it is installed, fitted to the same steps as our model."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from scipy.optimize import nnls


@dataclass(frozen=True)
class Others:
    """What others say of steps, in seconds by world size."""

    amdahl: Mapping[int, float]
    extrap: Mapping[int, float]  # empty: not installed
    formula: str | None  # of Extra-P

    def errors_of(self, n: int) -> dict[str, float | None]:
        """Return what they say of n ranks under the names of the columns of their errors."""
        return {"amdahl_error_percent": self.amdahl.get(n), "extrap_error_percent": self.extrap.get(n)}


def predicted(steps: Mapping[int, float], counts: Sequence[int]) -> Others:
    """Return what others predict at `counts`, from the seconds of steps at some counts."""
    formula, extrap = _extrap(steps, counts) if find_spec("extrap") else (None, {})
    return Others(amdahl(steps, counts), extrap, formula)


def amdahl(steps: Mapping[int, float], counts: Sequence[int]) -> dict[int, float]:
    """Return serial + parallel / n, fitted by least squares of relative errors, neither below 0 (Amdahl, 1967)."""
    times = np.array(list(steps.values()))
    rows = np.array([(1.0, 1 / n) for n in steps])
    numbers, _ = nnls(rows / times[:, None], np.ones(len(times)))
    return {n: float(numbers @ (1.0, 1 / n)) for n in counts}


def _extrap(steps: Mapping[int, float], counts: Sequence[int]) -> tuple[str, dict[int, float]]:
    """Return the model that Extra-P chooses from its terms p^i log2(p)^j, and what it predicts.

    Negative exponents are allowed, which is for strong scaling. It asks for five counts or more, and takes fewer.
    """
    from extrap.entities.coordinate import Coordinate
    from extrap.entities.measurement import Measurement
    from extrap.modelers.single_parameter.basic import SingleParameterModeler

    modeler = SingleParameterModeler()
    modeler.allow_negative_exponents = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are fewer than five
        taken = [Measurement(Coordinate(n), None, None, [seconds]) for n, seconds in steps.items()]
        function = modeler.create_model(taken).hypothesis.function
    return str(function), {n: float(function.evaluate(n)) for n in counts}
