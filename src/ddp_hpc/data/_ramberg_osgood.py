"""The law behind the strain-stress curves: Ramberg and Osgood's for loading, Hooke's for unloading.

Along loading, strain e (not in %) and stress s (MPa) obey

    e = s / E + 0.002 (s / f)^n

with Young's modulus E, the 0.2 % proof stress f, where the plastic strain is 0.002, and the exponent n: the larger, the
less the material hardens. Unloading is elastic, with slope E, and leaves the plastic strain behind.

Sources: W. Ramberg, W. R. Osgood, NACA TN 902 (1943); H. N. Hill, NACA TN 927 (1944), for the form with the proof
stress; EN 1999-1-1 (Eurocode 9), annex E, for E of aluminium and the ranges of its alloys; N. E. Dowling, Mechanical
Behavior of Materials, 4th ed. (2013), chapter 12, for loading and elastic unloading.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

YOUNG_MPA = 70_000.0  # aluminium
OFFSET = 0.002  # plastic strain at the proof stress
PROOF_MPA, EXPONENT = (100.0, 400.0), (5.0, 20.0)  # uniformly distributed between these
TOP_STRAIN = (0.02, 0.05)  # where loading ends: not to be found, but in the way
LOADING, POINTS = 140, 200  # points of a curve: first at equal strains while loading, then at equal stresses

MOST_ITERATIONS = 50
TOLERANCE = 1e-6  # of the last step, in proof stresses: what is left is of the order of its square

# of the two parameters, from their distributions and not from any draw: the first curves are the same in any number
MEAN = tuple((low + high) / 2 for low, high in (PROOF_MPA, EXPONENT))
DEVIATION = tuple((high - low) / 12**0.5 for low, high in (PROOF_MPA, EXPONENT))


@dataclass(frozen=True)
class StressCurves:
    """Curves side by side, each of 200 points; all arrays but `parameters` have the shape (curves, 200)."""

    strain: Array  # not in %
    stress: Array  # in MPa
    loading: Array  # 1 while loading, 0 while unloading
    parameters: Array  # proof stress in MPa and exponent, (curves, 2)


def draw(count: int, seed: tuple[int, ...], noise: float) -> StressCurves:
    """Return so many curves with random parameters; `noise`: the stress's deviation, in proof stresses of the curve."""
    random = np.random.default_rng(seed)
    proof, exponent, top = (random.uniform(*ends, count) for ends in (PROOF_MPA, EXPONENT, TOP_STRAIN))
    curves = pull(np.stack([proof, exponent], axis=1), top)
    error = noise * proof[:, None] * random.standard_normal(curves.stress.shape)
    return replace(curves, stress=curves.stress + error)


def pull(parameters: Array, top_strain: Array) -> StressCurves:
    """Return the curves without noise: from 0 to `top_strain` and back to no stress."""
    loading = np.linspace(0, 1, LOADING) * top_strain[:, None]
    rising = stress(loading, parameters)
    top = rising[:, -1:]
    falling = top * np.linspace(1, 0, POINTS - LOADING + 1)[1:]
    strain = np.concatenate([loading, top_strain[:, None] - (top - falling) / YOUNG_MPA], axis=1)
    flags = np.broadcast_to(np.arange(POINTS) < LOADING, strain.shape).astype(np.float64)
    return StressCurves(strain, np.concatenate([rising, falling], axis=1), flags, parameters)


def stress(strain: Array, parameters: Array) -> Array:
    """Return the stress while loading, (curves, points) like `strain`: the law has none as a formula, so by Newton.

    The strain is a convex, rising function of the stress. Elastic and plastic strain alone are at most the whole, so
    the lesser of the stresses that belong to them is not below the solution, and from there all steps go down to it.
    """
    proof, n = parameters[:, :1], parameters[:, 1:]
    ratio = np.minimum(YOUNG_MPA * strain / proof, (strain / OFFSET) ** (1 / n))  # stress in proof stresses
    elastic = proof / YOUNG_MPA
    for _ in range(MOST_ITERATIONS):
        power = OFFSET * ratio ** (n - 1)
        step = (elastic * ratio + power * ratio - strain) / (elastic + n * power)
        ratio = ratio - step
        if np.abs(step).max() < TOLERANCE:
            break
    return np.asarray(ratio * proof)
