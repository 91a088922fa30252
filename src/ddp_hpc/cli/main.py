"""The verbs of the command line: parse, call, print. Each imports what it needs when it is called."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ddp_hpc.cli.options import command, counts, number, percent, steps, whole
from ddp_hpc.system.terminal import prepare_streams

Argument = tuple[str, dict[str, Any]]  # what `add_argument` takes
Call = Callable[[argparse.Namespace], int]

# messages of the test of github.com/baidu-research/baidu-allreduce, in float32; it begins with an empty one
BAIDU_FLOATS = (32, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 8_388_608, 67_108_864, 536_870_912)

PREDICTED = ("ring", "mpi_allreduce", "parameter_server", "hierarchical")  # whose predictions a bench judges

DEFAULT = "profiles/default"

VERBS: dict[str, "Verb"] = {}


class Verb:
    """A verb of the command line, or a part of one: its help, its arguments, its parts."""

    call: Call

    def __init__(self, text: str, *arguments: Argument, **parts: "Verb") -> None:
        self.text, self.arguments, self.parts = text, arguments, parts

    def __call__(self, call: Call) -> Call:
        """Make a function `_name` the verb `name`."""
        self.call = call
        VERBS[call.__name__[1:]] = self
        return call

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Let `parser` take the arguments, and the parts if there are any."""
        for name, settings in self.arguments:
            parser.add_argument(name, **settings)
        if self.parts:
            parts = parser.add_subparsers(dest="part", metavar="PART", title="parts", help="what to time")
            for name, part in self.parts.items():
                part.add_to(parts.add_parser(name, help=part.text))


def takes(name: str, text: str, **settings: Any) -> Argument:
    """Return an argument whose help ends with its default, if it has one."""
    return name, settings | {"help": f"{text} (default: %(default)s)" if settings.get("default") else text}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb and exit with its code: 0 done, 1 a run has failed or is missing, 2 a wrong study or call."""
    prepare_streams()
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _options(given)
    try:
        code = options.call(options)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # `ddp-hpc list | head`
        sys.stderr.close()
        code = 0
    except (ValueError, OSError, RuntimeError) as error:
        if options.debug:
            raise
        print(f"ddp-hpc: {_short(str(error))}", file=sys.stderr)
        code = 2
    sys.exit(code)


def _options(given: list[str]) -> argparse.Namespace:
    """Return what was asked for. What follows `--` is not ours; argparse would take it only right behind the study."""
    parser, cut = _parser(given[0] if given else ""), given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:cut])
    if given[cut:] and "snakemake" not in options:
        parser.error(f"unrecognized arguments: {' '.join(given[cut:])}")
    elif given[cut:]:
        options.snakemake = given[cut + 1 :]
    return options


def _parser(called: str) -> argparse.ArgumentParser:
    """Return the parser of the verb that is called or, for help and mistakes, of all."""
    parser = _Parser(
        prog="ddp-hpc",
        description="Scaling studies of data-parallel training, from one YAML file to tables, figures and a report.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")

    for name, each in VERBS.items():
        if called not in VERBS or called == name:
            one = verbs.add_parser(name, help=each.text, description=each.text[0].upper() + each.text[1:] + ".")
            one.set_defaults(call=each.call)
            each.add_to(one)
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say also which studies, datasets, tables or verbs there are, if the first that is missing is one of these."""
        from ddp_hpc.config import catalog

        there: dict[str, Callable[[], list[str]]] = {
            "VERB": lambda: list(VERBS),
            "dataset": lambda: catalog.names("dataset"),
            "name": lambda: catalog.names(self.prog.split()[-1]),
            "study": lambda: _project().studies,
        }
        missing = message.removeprefix("the following arguments are required: ").split(", ")[0]
        with suppress(KeyError, ValueError):  # what is missing is none of these, or this is no project
            message += f"; expected: {', '.join(there[missing]()) or 'none'}"
        super().error(_short(message))


def _short(message: str) -> str:
    """Return a message without the middle of what somebody has pasted by mistake."""
    return (
        message if len(message) <= 2000 else f"{message[:600]} ... ({len(message):,} characters) ... {message[-600:]}"
    )


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *ignored: Any) -> None:
        from ddp_hpc import __version__

        print(f"ddp-hpc {__version__}")
        parser.exit()


def _project() -> Any:
    from ddp_hpc.runs.project import Project

    return Project.here()


def _say(text: object) -> int:
    print(text)
    return 0


def _say_json(values: Any) -> int:
    from ddp_hpc.system.terminal import in_json

    return _say(in_json(values))


JSON = takes("--json", "write JSON, for programs", action="store_true")
STUDY = takes("study", "name of the study, config/studies/NAME.yaml")
NAMES = takes(
    "names",
    "names of tables or figures; `ddp-hpc list tables` and `list figures` list them; without any: those of the study "
    "that are out of date",
    nargs="*",
    default=[],
    metavar="NAME",
)


@Verb(
    "make a project of your own in a folder: a first study, profiles, a Snakefile, room for models and datasets",
    takes("folder", "the folder of the project, new or not, e.g. `scaling` or `.`"),
    takes("--study", "begin with this example, e.g. quickstart, instead of a small study with comments"),
    takes(
        "--upgrade",
        "of a project that `init` has made, replace the files of which ddp-hpc now brings another version and that you "
        "have not edited",
        action="store_true",
    ),
)
def _init(options: argparse.Namespace) -> int:
    from ddp_hpc.workflow import new_project

    if not options.folder:  # of a variable that is not set
        raise ValueError("given no folder, expected: one, e.g. `scaling` or `.`")
    root = Path(options.folder)
    if options.upgrade:
        return _say("\n".join(new_project.upgrade(root) or ["nothing to do: all files are of this version"]))
    study = options.study or new_project.FIRST
    new_project.make(root, study)
    enter = "" if root.resolve() == Path.cwd() else f"cd {shlex.quote(options.folder)} && "
    return _say(f"made a project in {root.resolve()}; next: {enter}ddp-hpc run {study}")


@Verb(
    "list studies, the points of one, or models, datasets, exchanges, tables, figures",
    takes(
        "what",
        "what to list: the points of a study, or names and options of a kind; by default the studies",
        nargs="?",
        metavar="STUDY|models|datasets|exchanges|tables|figures",
    ),
    JSON,
)
def _list(options: argparse.Namespace) -> int:
    from ddp_hpc.cli import listing
    from ddp_hpc.system.terminal import write_rows

    write_rows(listing.rows(_project, options.what, options.json), options.json)
    return 0


@Verb(
    "show what will run, why, and for about how long",
    STUDY,
    JSON,
    takes("--all", "list every run, finished ones too, instead of each reason", action="store_true"),
    takes(
        "--profile",
        "also show what runs request from this profile's machine, e.g. profiles/slurm; fail if one cannot fit",
    ),
    takes(
        "--whole",
        "let the next `ddp-hpc run` train the runs to their end that were stopped when they were beaten",
        action="store_true",
    ),
    takes("--write", "write spec.json files, so that `ddp-hpc train RUN` can be called by hand", action="store_true"),
)
def _plan(options: argparse.Namespace) -> int:
    from ddp_hpc.cli import listing
    from ddp_hpc.slurm import packing
    from ddp_hpc.system.process import gpus_shown
    from ddp_hpc.workflow import claims_check, missing_baselines, new_project, plan, predicted_times, resource_requests

    project = _project()
    study_runs = claims_check.checked(project, project.study_runs(options.study))
    study_runs = missing_baselines.noted(new_project.noted(project, plan.weights_noted(study_runs)))
    if options.whole:
        plan.ask_for_whole(study_runs)
    study_runs = plan.with_next_round(study_runs)
    machine = project.machine_of(options.profile) if options.profile is not None else None
    asked = resource_requests.requests([study_runs], machine) if machine else {}
    items = predicted_times.with_predictions(study_runs, plan.plan(study_runs))
    if (project.root / (options.profile or DEFAULT)).is_dir():
        settings = project.profile(options.profile or DEFAULT).config
        study_runs = plan.with_time_limit(study_runs, items, settings)
        study_runs = plan.with_gpus(study_runs, items, settings, gpus_shown(os.environ))
    seconds = {item.planned.run: item.estimate.middle_s for item in items if item.estimate}
    found = packing.packings(study_runs.study.name, asked, seconds, machine) if machine else []
    if options.write:
        plan.prepare(study_runs)
    if options.json:
        return _say_json(listing.plan_values(study_runs, items, asked, found))
    what = "step" if options.profile and project.profile(options.profile).config.allocation else "job"
    said = [*listing.plan_lines(study_runs, items, options.all), *listing.asked_lines(asked, what)]
    return _say("\n".join([*said, *packing.lines(found, len(asked))]))


@Verb(
    "build each model and dataset of a study, take two steps here on one rank, and show shapes, memory, seconds",
    STUDY,
    JSON,
)
def _try(options: argparse.Namespace) -> int:
    from ddp_hpc.execution import trial
    from ddp_hpc.system.terminal import write_rows

    project = _project()
    rows = list(trial.trials(project.study_runs(options.study), project.data_folder))
    write_rows(rows, options.json)
    return int(any("problem" in row for row in rows))


@Verb(
    "train the missing runs of a study, then make its tables, figures and report",
    STUDY,
    takes("--profile", "the workflow profile", default=DEFAULT),
    takes(
        "--launcher",
        "command that starts the ranks, instead of the profile's, e.g. 'mpiexec', "
        "'srun --mpi=pmix --kill-on-bad-exit=1'; without -n, "
        "which each run adds with its number of ranks",
        type=command,
    ),
    takes("snakemake", "further arguments for snakemake, after --", nargs="*", default=[], metavar="-- ARG"),
)
def _run(options: argparse.Namespace) -> int:
    from ddp_hpc.workflow import driver

    return driver.run(_project(), options.study, options.profile, options.launcher, options.snakemake)


@Verb(
    "predict steps and their cost at world sizes and batches that were not measured, with intervals and errors",
    STUDY,
    takes("--world-size", "world sizes, e.g. 8,16,40 (default: 2, 4 and 8 times the largest)", type=counts),
    takes(
        "--batch-size",
        "batches instead of those that were measured: of a rank or, if the study has global_batch_size, of all",
        type=counts,
        metavar="B[,B...]",
    ),
    takes(
        "--node-hours",
        "say which count comes to a goal soonest within so many, and how far each comes",
        type=number(0, inclusive=False),
        metavar="N",
    ),
    takes("--epochs", "so many are a goal for the node-hours", type=number(0, inclusive=False), metavar="N"),
    takes("--profile", "take links, nodes and the price of a node-hour from this profile's machine"),
    takes("--latency", "what if the link had this latency; with --bandwidth", type=number(0), metavar="S"),
    takes(
        "--bandwidth",
        "what if it had this bandwidth, per direction; with --latency",
        type=number(0, inclusive=False),
        metavar="GB/S",
    ),
    takes(
        "--ranks-per-node",
        "what if a node had so many ranks; then the link is the one between nodes",
        type=whole(),
        metavar="N",
    ),
    takes("--exchange", "what if another exchange were used, e.g. ring or 'sharded_server servers=4'", metavar="NAME"),
    takes("--draw", "also draw it: measured, predicted, and what if", type=Path, metavar="FILE.svg"),
    JSON,
)
def _predict(options: argparse.Namespace) -> int:
    from ddp_hpc.analysis import predict

    project = _project()
    machine = project.machine_of(options.profile) if options.profile is not None else None
    what_if = predict.WhatIf(options.latency, options.bandwidth, options.ranks_per_node, options.exchange)
    study_runs = project.study_runs(options.study)
    asked = predict.Wanted(options.world_size, tuple(options.batch_size or ()), options.node_hours, options.epochs)
    found = predict.answer(study_runs, asked, machine, what_if)
    if options.draw:
        file = predict.drawn(found, study_runs.study, study_runs.coverage(), options.draw)
        print(file, file=sys.stderr)
    return _say_json(found) if options.json else _say("\n".join(predict.lines(found)))


@Verb(
    "show the running, waiting and failed runs of a study, with reasons and node-hours",
    STUDY,
    JSON,
    takes("--check", "read all records whole and name the damaged ones; exit with 1 if some are", action="store_true"),
)
def _status(options: argparse.Namespace) -> int:
    from ddp_hpc.workflow import status

    study_runs = _project().study_runs(options.study)
    if options.check:
        damages = status.check(study_runs)
        whole = f"{len(study_runs.planned) - len(study_runs.lacking)} of {len(study_runs.planned)} runs are whole"
        _say_json(damages) if options.json else _say("\n".join([*damages.values(), f"the records of {whole}"]))
        return 1 if damages else 0
    found = status.overview(study_runs)
    return _say_json(found) if options.json else _say("\n".join(status.lines(study_runs, found)))


@Verb(
    "list the runs that no study plans and the damaged files that were put aside, the oldest first, and what they take "
    "on the disk; with --delete free that",
    takes("--older-than", "only those of which no file is younger", type=number(0), default=0.0, metavar="DAYS"),
    takes("--delete", "delete them, with their records: they are lost", action="store_true"),
    JSON,
)
def _prune(options: argparse.Namespace) -> int:
    from ddp_hpc.system.terminal import write_rows
    from ddp_hpc.workflow import prune

    project = _project()
    rows = prune.delete(project, options.older_than) if options.delete else prune.left(project, options.older_than)
    if rows or options.json:
        write_rows(rows, options.json)
    print(prune.summary(rows, options.delete), file=sys.stderr)
    return int(any("problem" in row for row in rows))


@Verb(
    "fetch a dataset and check it",
    takes("dataset", "name of the dataset; `ddp-hpc list datasets` lists them"),
    takes("--from", "where to fetch it from, instead of its publisher", dest="source", metavar="PATH|URL"),
)
def _data(options: argparse.Namespace) -> int:
    from ddp_hpc.data._download import fetch

    project = _project()
    source = options.source or project.read_config().data.get(options.dataset)
    return _say(fetch(options.dataset, project.data_folder, source))


@Verb(
    "train one planned run now, on this machine",
    takes("run", "name of the run: its folder in results/runs"),
    takes(
        "--launcher",
        "complete command that starts the ranks, with -n and the run's number of ranks, e.g. 'mpiexec -n 4'; "
        "empty for one rank",
        type=command,
        default="",
    ),
    takes(
        "--trace",
        "trace these steps, e.g. 100-110, into `trace/` in the run's folder, for https://ui.perfetto.dev; each "
        "runs twice, so that neither result nor times change",
        type=steps,
        metavar="FIRST-LAST",
    ),
    takes(
        "--keep",
        "keep the trained weights for `ddp_hpc.load_model`, as `keep: weights` in a study",
        choices=["weights"],
    ),
    takes("--again", "train a finished run again and replace its record", action="store_true"),
    takes(
        "--faults",
        "do not start if a run that notes its crash in this folder says that this one would crash, too",
        metavar="FOLDER",
        default="",
    ),
    takes("--time-limit-min", "end the run as `timeout` after this many minutes", type=number(0, inclusive=False)),
    takes(
        "--checkpoint-every-s",
        "seconds between checkpoints; 0: only when the run is asked to end, by SIGUSR1, SIGTERM or its time limit",
        type=number(0),
        default=600,
    ),
)
def _train(options: argparse.Namespace) -> int:
    from ddp_hpc.execution.supervisor import supervise
    from ddp_hpc.runs.attempt import Faults, RunFolder

    here = Path.cwd()  # not `_project`, which imports what reads studies: a training starts quickly
    root = next((folder for folder in (here, *here.parents) if (folder / "workflow" / "Snakefile").is_file()), here)
    runs, data = root / "results" / "runs", root / "results" / "data"
    given = Path(options.run)  # a name, or the folder, as a shell completes it
    run = given.name if given.parent.resolve() == runs.resolve() else options.run
    folder = runs / run
    if RunFolder(folder).finished and not options.again:
        said = f"{run} has a finished record; `--again` trains it again, and the new record takes its place"
        if options.trace:
            raise ValueError(f"nothing was traced: {said}")
        return _say(f"nothing to do: {said}")
    limit = None if options.time_limit_min is None else 60 * options.time_limit_min
    launcher = shlex.split(options.launcher)
    faults = Faults(root / options.faults) if options.faults else None
    every_s, keep = options.checkpoint_every_s, options.keep
    outcome = supervise(folder, launcher, data, limit, options.trace, every_s, faults=faults, keep=keep)
    line = f"{run}: {outcome.status}{f': {outcome.reason}' if outcome.reason else ''}\n"
    with suppress(OSError):  # a full disk must not make a failure of a result
        os.write(1, line.encode())
    return outcome.exit_code


@Verb("make tables of a study from the records so far", STUDY, NAMES)
def _table(options: argparse.Namespace) -> int:
    from ddp_hpc.workflow.outputs import make_outputs

    return make_outputs(_project(), options.study, "table", options.names, debug=options.debug)


@Verb(
    "draw figures of a study from its tables",
    STUDY,
    NAMES,
    takes(
        "--size",
        "as wide as a column (3.4 in) or a page (7 in) of a journal, as NAME-SIZE; without it, in the size that suits",
        choices=("column", "page"),
    ),
)
def _figure(options: argparse.Namespace) -> int:
    from ddp_hpc.workflow.outputs import make_outputs

    return make_outputs(_project(), options.study, "figure", options.names, options.size, debug=options.debug)


@Verb(
    "write the report of a study from its tables and figures",
    STUDY,
    takes("--all", "first make those that are out of date", action="store_true"),
)
def _report(options: argparse.Namespace) -> int:
    from ddp_hpc.workflow.outputs import make_outputs, make_page

    kinds = ("table", "figure") if options.all else ()
    codes = [make_outputs(_project(), options.study, kind, debug=options.debug) for kind in kinds]
    return max(_say(make_page(_project(), options.study)), *codes, 0)


@Verb(
    "make a pack of a study's results that others can verify, cite and deposit; or say why it cannot be published",
    takes(
        "study",
        "name of the study; or a pack, of which all that is made from its records is made anew, in its place",
        metavar="STUDY|PACK",
    ),
    takes("--to", "folder, or file .zip (default: results/packs/STUDY-DATE)", type=Path, metavar="DIR|FILE.zip"),
    takes(
        "--runs",
        "whose records it holds; only with all can tables be made anew from it",
        choices=("all", "winners", "none"),
        default="all",
    ),
    takes(
        "--steps",
        "what it holds of their steps: losses, of the first rank alone, if all tables follow from them",
        choices=("all", "losses"),
        default="all",
    ),
    takes("--check", "only say whether it can be published", action="store_true"),
    takes("--redact", "put other words in place of user names, paths, hosts and accounts", action="store_true"),
    takes("--allow-private", "publish what looks private as it is", action="store_true"),
    takes("--machine", "add the description of this cluster, config/machines/NAME.yaml", metavar="NAME"),
)
def _publish(options: argparse.Namespace) -> int:
    from ddp_hpc.publication.publish import PackOptions, publish, publish_anew

    if "/" in options.study or options.study.endswith(".zip"):
        return publish_anew(Path(options.study))
    names = ("to", "runs", "steps", "check", "redact", "allow_private", "machine")
    return publish(_project(), options.study, PackOptions(**{name: getattr(options, name) for name in names}))


@Verb(
    "check a pack that `publish` has made: checksums, hashes, tables made anew from its records, claims judged again",
    takes("pack", "its folder or zip file", type=Path, metavar="PACK"),
    takes("--trust", "run the code that it brings for tables and figures of its own", action="store_true"),
)
def _verify(options: argparse.Namespace) -> int:
    from ddp_hpc.publication.verify import verify

    return verify(options.pack, options.trust)


@Verb(
    "train runs of a pack again in a new folder, and say whether their results are reproduced",
    takes("pack", "its folder or zip file", type=Path, metavar="PACK"),
    takes("--points", "which runs", choices=("winners", "all"), default="winners"),
    takes("--to", "the folder of the new runs", type=Path, default=Path("rerun"), metavar="DIR"),
    takes("--launcher", "command that starts the ranks, without -n", type=command, default="mpiexec"),
)
def _rerun(options: argparse.Namespace) -> int:
    from ddp_hpc.publication.rerun import rerun

    return rerun(options.pack, options.to, options.points, options.launcher)


@Verb(
    "test which points of two result sets differ by more than the noise, and whether they are better or worse",
    takes(
        "a",
        "the old results: a study; STUDY@before, the newest runs of its specs with other code; a folder of "
        "results; a table runs.parquet",
        metavar="A",
    ),
    takes("b", "the new results: the same", metavar="B"),
    takes(
        "--tolerance",
        "ignore differences smaller than this, even significant ones",
        type=percent,
        default=1.0,
        metavar="PERCENT",
    ),
    takes(
        "--change",
        "say how many repeats would detect a change of this size",
        type=percent,
        default=5.0,
        metavar="PERCENT",
    ),
    takes("--all", "list every comparison, not only the differences", action="store_true"),
    JSON,
)
def _compare(options: argparse.Namespace) -> int:
    from ddp_hpc.analysis import compare

    return compare.main(options.a, options.b, options.tolerance / 100, options.change / 100, options.all, options.json)


@Verb(
    "show how step times, losses, winners and efficiency of a study developed over commits: a page, a figure, a table",
    takes(
        "given",
        "a pack; a study, with all its finished runs by whichever code; or a folder of results",
        nargs="+",
        metavar="PACK|STUDY|DIR",
    ),
    takes("--to", "the folder of the page", type=Path, default=Path("results/history"), metavar="DIR"),
    JSON,
)
def _history(options: argparse.Namespace) -> int:
    from ddp_hpc.publication import history

    return history.main(options.given, options.to, options.json)


@Verb(
    "show what differs between two runs: spec, code, versions, hosts, clocks, environment, job",
    *(takes(name, "its name, a unique prefix of it, or its folder", metavar="RUN") for name in ("a", "b")),
    JSON,
)
def _diff(options: argparse.Namespace) -> int:
    from ddp_hpc.analysis.compare import run_diff

    return run_diff.main(options.a, options.b, options.json)


@Verb(
    "check this machine: what it offers, what is missing, and what to do",
    JSON,
    takes("--machine", "print only a machine file for this cluster, from sinfo", action="store_true"),
)
def _doctor(options: argparse.Namespace) -> int:
    from ddp_hpc.cli import doctor
    from ddp_hpc.cli.doctor import machine_file

    return machine_file.main() if options.machine else doctor.main(as_json=options.json)


MPIEXEC = takes("--launcher", "command that starts the ranks, without -n", type=command, default="mpiexec")


@Verb(
    "time planning, the workflow, exchanges, meters, folded biases or GPUs on this machine: some minutes",
    planning=Verb(
        "planning, and what the workflow adds to each run (the default)",
        takes("--points", "sizes of the studies (default: 100 1000 5000)", type=whole(), nargs="+"),
        takes("--runs", "number of runs that the workflow is timed on (default: 200)", type=whole()),
        takes("--rounds", "measurements of each command (default: 3)", type=whole()),
    ),
    publishing=Verb(
        "tables, figures and page of many finished runs, made up: CPU time and memory",
        takes("--runs", "numbers of runs, about (default: 1000 10000)", type=whole(), nargs="+"),
    ),
    exchange=Verb(
        "every exchange at message sizes from 4 bytes to 256 MB",
        takes(
            "--ranks",
            "numbers of ranks (default: 2, 4, 8, ... as far as there are cores, or GPUs)",
            type=whole(),
            nargs="+",
        ),
        takes("--device", "device; a GPU for each rank: cuda", choices=("cpu", "cuda"), default="cpu"),
        takes(
            "--exchanges",
            "names, or '{name: NAME, OPTION: VALUE}' (default: all that run here)",
            nargs="+",
            metavar="EXCHANGE",
        ),
        takes("--sizes", "message sizes in bytes, multiples of 4 (default: powers of 4)", type=whole(4), nargs="+"),
        takes(
            "--baidu",
            "the sizes of baidu-allreduce's test, 32 to 536,870,912 floats, as far as they fit into memory",
            dest="sizes",
            action="store_const",
            const=[4 * floats for floats in BAIDU_FLOATS],
        ),
        takes("--rounds", "measurements of each exchange", type=whole(), default=5),
        MPIEXEC,
        takes("--out", "folder of the results", type=Path, default=Path("results/bench/exchange")),
    ),
    meters=Verb(
        "the overhead of clocks and meters, on CPU ranks",
        takes("--ranks", "number of ranks, on this node", type=whole(), default=2),
        takes("--rounds", "number of rounds of four blocks", type=whole(), default=20),
        MPIEXEC,
        takes("--steps", "steps of a block", type=whole(), default=100),
    ),
    prediction=Verb(
        "whether predictions come true, on nodes of this machine whose links are shaped: needs root",
        takes(
            "--exchanges", "names, or '{name: NAME, OPTION: VALUE}'", nargs="+", metavar="EXCHANGE", default=PREDICTED
        ),
        takes("--fit", "numbers of nodes that the model is fitted to", type=whole(2), nargs="+", default=[2, 3]),
        takes("--judge", "numbers of nodes that it predicts", type=whole(2), nargs="+", default=[4, 6, 8]),
        takes("--also", "numbers of nodes that are measured, too, for --samples", type=whole(2), nargs="+"),
        takes("--sizes", "bytes of the gradients", type=whole(4), nargs="+", default=[1 << 20]),
        takes("--work-ms", "milliseconds of a step's work, which the nodes share", type=number(0), default=100.0),
        takes("--mbit", "rate of a node's link, each way, in Mbit/s", type=number(0, inclusive=False), default=50.0),
        takes("--launches", "how often each number of nodes is launched", type=whole(), default=5),
        takes("--rounds", "measurements of each exchange in a launch", type=whole(), default=1),
        takes("--samples", "judge these measurements, a samples.parquet, and measure nothing", type=Path),
        takes("--out", "folder of the results", type=Path, default=Path("results/bench/prediction")),
    ),
    gpu=Verb(
        "whether all is right and fast on the GPUs of this machine, in under nine minutes, with a summary",
        takes(
            "--device", "device; on a CPU all is small, and no speed is judged", choices=("cpu", "cuda"), default="cuda"
        ),
        takes("--only", "these parts only (default: all)", nargs="+", metavar="PART"),
        takes("--seconds", "time for all parts", type=number(0, inclusive=False), default=530.0),
        MPIEXEC,
        takes("--out", "folder of the results", type=Path, default=Path("results/bench/gpu")),
    ),
    realign=Verb(
        "a layer with its bias folded into its weights, against addmm",
        takes(
            "--shapes",
            "shapes of layers, e.g. 75x600x150 (default: five shapes)",
            nargs="+",
            metavar="ROWSxINPUTSxOUTPUTS",
        ),
        takes("--device", "device", choices=("cpu", "cuda"), default="cpu"),
        takes("--dtype", "type", choices=("float32", "float64", "float16"), default="float32"),
        takes("--rounds", "measurements of each variant", type=whole(), default=9),
        takes("--out", "folder of the results", type=Path, default=Path("results/bench/realign")),
    ),
)
def _bench(options: argparse.Namespace) -> int:
    from ddp_hpc import bench

    return bench.main(options)


@Verb("print the JSON Schema of study files, for editors")
def _schema(options: argparse.Namespace) -> int:
    from ddp_hpc.config import reference

    return _say_json(reference.schema())


if __name__ == "__main__":
    main()
