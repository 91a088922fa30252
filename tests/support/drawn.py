"""Studies of all kinds for the tests of figures, and what a figure says."""

import importlib
from dataclasses import replace
from functools import cache

from factory import Result, made_up, realistic
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ddp_hpc.analysis.figures._style import style
from ddp_hpc.config import catalog

NAN = float("nan")


def grid(world_size, exchange="ring", batch_size=(16, 32), learning_rate=(0.1, 2.0), **more):
    lists = {"batch_size": list(batch_size), "learning_rate": list(learning_rate)}
    return {"exchange": exchange, "world_size": world_size, **lists, **more}


def diverged(spec):
    return Result("diverged", "loss is nan at step 3 (rank 0)", (0.1, 0.2, 0.3), (2.3, 9.0, NAN))


def mixed(spec):
    """Some of everything: two points missing, one failed, one out of memory, one cut short, one above the threshold."""
    result = realistic(spec)
    special = {
        (1, 16, 0.1): Result("missing"),
        (2, 16, 0.1): Result("crashed", "rank 1: ValueError: boom"),
        (2, 32, 0.1): Result("oom_gpu", "CUDA out of memory", (0.1,), (2.3,)),
        (2, 32, 2.0): replace(result, t_s=result.t_s[:-5], loss=result.loss[:-5]),
        (4, 16, 2.0): diverged(spec),
        (4, 32, 0.1): replace(result, columns={"min_loss": 0.9}),
    }
    return special.get((spec.world_size, spec.batch_size, spec.learning_rate), result)


TWO_MODELS = {"model": ["mlp", {"name": "mlp", "widths": [32, 16]}], "threads_per_rank": [None]}
RATES = [round(0.02 * number, 3) for number in range(1, 51)]
SITUATIONS = {
    "usual": {"grid": [grid(1, "none"), grid([1, 2, 4])], "budget": {"samples_seen": 6400}},
    "mixed": {"train": mixed, "grid": [grid(1, "none"), grid([2, 4, 16])], "budget": {"samples_seen": 6144}},
    "diverged": {"train": diverged},
    "nothing": {"train": lambda spec: Result("missing")},
    "all failed": {"train": lambda spec: Result("timeout", "10 minutes are over")},
    "one run": {"grid": [grid(1, "none", [16], [0.1])]},
    "one step": {"train": lambda spec: Result(t_s=(0.1,), loss=(0.2,)), "budget": {"seconds": 0.1}},
    "repeats": {"grid": [grid(1, "none"), grid([2, 4])], "repeats": 3, "budget": {"samples_seen": 3200}},
    "by the clock": {"grid": [grid(1, "none"), grid([2, 4])], "budget": {"seconds": 3.0}},
    "no baseline": {"grid": [grid([2, 4])]},
    "fifty rates": {"grid": [grid([1, 2], learning_rate=RATES, batch_size=[64])], "budget": {"samples_seen": 6400}},
    "216 points": {
        "grid": [grid([1, 2, 4, 8], "ring", [2**k for k in range(4, 10)], [k / 10 for k in range(1, 10)])],
        "budget": {"samples_seen": 8192},
    },
    "many axes": {
        "base": {"dataset": "digits"},
        "grid": [grid(1, "none", **TWO_MODELS), grid([1, 2, 32], ["ring", "mpi_allreduce"], **TWO_MODELS)],
        "budget": {"samples_seen": 6144},
    },
    "other search": {
        "grid": [grid(2, momentum=[0.0, 0.9], optimizer="sgd", weight_decay=[0.0, 0.01])],
        "search": ["momentum", "weight_decay", "learning_rate"],
        "budget": {"samples_seen": 3200},
    },
    "nothing searched": {"grid": [grid(1, "none", [16], [0.1]), grid([2, 4], "ring", [16], [0.1])], "search": []},
}


class Tables(dict):
    """Tables of a study by name, each made when it is first asked for; no figure reads all that there are."""

    def __init__(self, study_runs):
        super().__init__()
        self.study_runs = study_runs

    def __missing__(self, table):
        module = importlib.import_module(f"ddp_hpc.analysis.tables.{table}")
        self[table] = module.build(self.study_runs)
        return self[table]

    def __or__(self, others):
        both = Tables(self.study_runs)
        both.update({**self, **others})
        return both


def situations(folder_of):
    """Return a function from the name of a situation to its runs and tables, each made once in `folder_of(name)`."""

    @cache
    def of(name):
        keys = dict(SITUATIONS[name])
        study_runs = made_up(folder_of(name), keys.pop("train", realistic), **keys)
        return study_runs, Tables(study_runs)

    return of


def draw(situation, name, figure, size=None):
    study_runs, frames = situation
    inputs = catalog.constants("figure", name)["INPUTS"]
    with style(size):
        drawn = importlib.import_module(f"ddp_hpc.analysis.figures.{name}").draw(
            {table: frames[table] for table in inputs}, study_runs.study, study_runs.coverage()
        )
        FigureCanvasAgg(drawn)
        drawn.draw_without_rendering()
    return drawn


def words(figure):
    """Return all texts of a figure, and what its caption adds."""
    texts = [*figure.texts, *(text for axes in figure.axes for text in [*axes.texts, axes.title])]
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    told = [text.get_text() for text in [*texts, *(text for legend in legends for text in legend.get_texts())]]
    return "\n".join([*told, str(figure.get_label())])
