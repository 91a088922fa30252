"""Studies drawn at random, of steps whose parameters are known, for what predicts them.

`python tests/support/drawn_studies.py 100` draws studies of each kind until so many are answered at 2, 4 and 8 times
the measured counts, and says how often the interval of a prediction holds the truth, and how many were not answered.
"""

import sys
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from scipy import stats

from ddp_hpc import perfmodel
from ddp_hpc.analysis.prediction.measured import Place, Run, reduced
from ddp_hpc.analysis.prediction.step_model import ExchangeModel, Model
from ddp_hpc.analysis.prediction.trust import doubt

KINDS = ("weak", "strong", "fixed samples")  # fixed samples: a step is one of weak scaling, there are fewer of them
FORMULAS = ("ring", "allreduce", "parameter_server", "sharded_server")
TIMES = (2, 4, 8)  # the largest measured count
COUNTS = ((1, 2, 4), (1, 2, 3, 4), (2, 4, 8), (1, 2, 4, 8))
SCATTERS = (stats.norm(), stats.gamma(2.0), stats.lognorm(0.6))


@dataclass(frozen=True)
class Truth:
    """How a drawn study's steps come about."""

    kind: str
    formula: str
    counts: tuple[int, ...]
    size: float  # bytes
    link: perfmodel.Link
    work: tuple[float, float, float]  # seconds: of a step, of a sample, of a sample and rank beside
    batch: int  # per rank (weak), or of all (strong)
    one_node: bool
    scatter: float  # of ranks, as a share of the work
    shape: int  # of the scatter
    between_runs: float
    hidden: tuple[float, float] | None  # beside which share of the work, and the share of the exchange that never is
    repeats: int
    steps: int

    def place(self, n: int) -> Place:
        """Return where n ranks are: on one node, or each on its own."""
        return Place(
            world_size=n,
            batch_size=self.batch / n if self.kind == "strong" else self.batch,
            nodes=1 if self.one_node else n,
        )

    @property
    def exchange(self) -> ExchangeModel:
        """The exchange as the model is told of it."""
        return ExchangeModel(formula=self.formula, size=self.size, overlaps=self.hidden is not None)

    def work_s(self, n: int) -> float:
        """Return the mean work of a rank."""
        place, (step, sample, beside) = self.place(n), self.work
        return step + place.batch_size * (sample + beside * (place.ranks_per_node - 1))

    def exchange_s(self, n: int) -> tuple[float, float]:
        """Return the exchange, and what of it is exposed."""
        whole = perfmodel.cost(self.formula, self.size, n).time(self.link)
        if self.hidden is None:
            return whole, whole
        share, last = self.hidden
        return whole, max(last * whole, whole - share * self.work_s(n))

    def step_s(self, n: int) -> float:
        """Return the expected step of n ranks."""
        one = SCATTERS[self.shape]
        chances = (np.arange(200_000) + 0.5) / 200_000
        latest = (one.ppf(chances ** (1 / n)).mean() - one.mean()) / one.std()
        return self.work_s(n) * (1 + self.scatter * latest) + self.exchange_s(n)[1]

    def runs(self, rng: np.random.Generator) -> list[Run]:
        """Return what a study would measure."""
        return [self._run(n, rng) for n in self.counts for _ in range(self.repeats)]

    def _run(self, n: int, rng: np.random.Generator) -> Run:
        machine = np.exp(self.between_runs * rng.normal())
        one = SCATTERS[self.shape]
        apart = (one.rvs(size=(self.steps, n), random_state=rng) - one.mean()) / one.std()
        together = 0.02 * rng.normal(size=(self.steps, 1))
        own = machine * self.work_s(n) * (1 + self.scatter * apart + together)
        if n == 1:
            return Run(
                place=self.place(1),
                work_s=float(own.mean()),
                errors=(float(own.std() / own.mean()) / 10, np.nan, np.nan),
            )
        network = machine * np.exp(self.between_runs * rng.normal()) * (1 + 0.05 * rng.normal(size=(self.steps, 1)))
        whole, exposed = (np.abs(network) * seconds for seconds in self.exchange_s(n))
        late = own.max(axis=1, keepdims=True) - own
        steps = {
            "step_s": own + late + exposed,
            "exchange_exposed_s": late + exposed,
            "move_s": np.repeat(exposed, n, axis=1),
            "exchange_busy_s": whole + late,
        }
        run = reduced(self.place(n), steps, float((own + late + exposed).mean()), self.hidden is not None)
        assert isinstance(run, Run)
        return run


def drawn(rng: np.random.Generator, kind: str | None = None) -> Truth:
    """Draw a study, of a kind if one is given."""
    sample = 10 ** rng.uniform(-5, -4)
    one_node = bool(rng.integers(2))
    formula = str(rng.choice(FORMULAS))
    work = (10 ** rng.uniform(-4, -3), sample, sample * rng.uniform(0, 0.05) if one_node else 0.0)
    whole_s = work[0] + 64 * sample
    link = perfmodel.Link(latency=whole_s * 10 ** rng.uniform(-4, -2), bandwidth=10 ** rng.uniform(8.5, 10.5))
    return Truth(
        kind=kind or str(rng.choice(KINDS)),
        formula=formula,
        counts=COUNTS[rng.integers(len(COUNTS))],
        size=link.bandwidth * whole_s * 10 ** rng.uniform(-1.5, 0),
        link=link,
        work=work,
        batch=768,
        one_node=one_node,
        scatter=rng.uniform(0.01, 0.1),
        shape=int(rng.integers(len(SCATTERS))),
        between_runs=rng.uniform(0.003, 0.02),
        hidden=(rng.uniform(0.1, 0.6), rng.uniform(0.05, 0.3)) if rng.random() < 0.3 else None,
        repeats=int(rng.integers(2, 6)),
        steps=int(rng.integers(60, 200)),
    )


@dataclass(frozen=True)
class Judged:
    """A prediction and what it should have been."""

    truth: Truth
    times: int  # the largest measured count
    step_s: float
    low_s: float
    high_s: float
    true_s: float

    @property
    def held(self) -> bool:
        """Whether the interval holds the truth."""
        return self.low_s <= self.true_s <= self.high_s


def judged(studies: int, seed: int, kind: str) -> tuple[list[Judged], int]:
    """Return predictions of 2, 4 and 8 times the measured counts of so many studies of a kind that tell enough.

    And how many others were drawn, of which some prediction is refused.
    """
    found: list[Judged] = []
    for number in count():
        rng = np.random.default_rng([seed, KINDS.index(kind), number])
        truth = drawn(rng, kind)
        model = Model(truth.runs(rng), truth.exchange, truth.one_node)
        counts = {times: times * truth.counts[-1] for times in TIMES}
        if any(doubt(model, truth.place(n)) for n in counts.values()):
            continue
        for times, n in counts.items():
            step = model.predict(truth.place(n)).interval()
            found.append(Judged(truth, times, step.middle, step.low, step.high, truth.step_s(n)))
        if len(found) == studies * len(TIMES):
            return found, number + 1 - studies
    raise AssertionError


def few(truth: Truth, *counts: int) -> Truth:
    """Return a study of other counts."""
    return replace(truth, counts=counts)


if __name__ == "__main__":
    studies = int(sys.argv[1])
    for kind in KINDS:
        every, refused = judged(studies, 0, kind)
        for times in TIMES:
            those = [one for one in every if one.times == times]
            errors = [abs(one.step_s / one.true_s - 1) for one in those]
            widths = [one.high_s / one.low_s for one in those]
            held = sum(one.held for one in those)
            print(
                f"{kind}, {times} times the measured counts: {held} of {len(those)} intervals hold the truth; median "
                f"error {100 * np.median(errors):.1f} %, of ends to one another {np.median(widths):.2f}; "
                f"{refused} more studies do not tell"
            )
        if "--all" in sys.argv:
            print(*(one for one in every if not one.held), sep="\n")
