"""The verbs of the command line: parse, call, print. Each imports what it needs when it is called."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddp_hpc.cli import arguments as takes


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb and exit with its code: 0 done, 1 a run has failed or is missing, 2 a wrong study or call."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _options(given)
    try:
        code = options.verb(options)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # `ddp-hpc list | head`
        sys.stderr.close()
        code = 0
    except (ValueError, OSError, RuntimeError) as error:
        if getattr(options, "debug", False):
            raise
        print(f"ddp-hpc: {error}", file=sys.stderr)
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
    parser = argparse.ArgumentParser(
        prog="ddp-hpc",
        description="Scaling studies of data-parallel training, from one YAML file to tables, figures and a report.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")

    for name, (call, text, add) in VERBS.items():
        if called not in VERBS or called == name:
            one = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
            one.set_defaults(verb=call)
            add(one)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *ignored: Any) -> None:
        from ddp_hpc import __version__

        print(f"ddp-hpc {__version__}")
        parser.exit()


def _project() -> Any:
    from ddp_hpc.runs.project import Project

    return Project.here()


def _list(options: argparse.Namespace) -> int:
    from ddp_hpc.cli import listing
    from ddp_hpc.system.terminal import write_rows

    rows = listing.rows(_project(), options.what)
    write_rows(rows if options.json else listing.readable(rows), options.json)
    return 0


def _plan(options: argparse.Namespace) -> int:
    from ddp_hpc.cli import listing
    from ddp_hpc.slurm import packing
    from ddp_hpc.workflow import claims_check, plan, resource_requests

    project = _project()
    study_runs = claims_check.checked(project, project.study_runs(options.study))
    machine = project.machine_of(options.profile) if options.profile else None
    asked = resource_requests.requests([study_runs], machine) if machine else {}
    items = plan.plan(study_runs)
    seconds = {item.planned.run: item.estimate.middle_s for item in items if item.estimate}
    found = packing.packings(study_runs.study.name, asked, seconds, machine) if machine else []
    if options.write:
        plan.prepare(study_runs)
    if options.json:
        return _say_json(listing.plan_values(study_runs, items, asked, found))
    what = "step" if options.profile and project.profile_config(options.profile).get("allocation") else "job"
    said = [*listing.plan_lines(study_runs, items, options.all), *listing.asked_lines(asked, what)]
    return _say("\n".join([*said, *packing.lines(found, len(asked))]))


def _run(options: argparse.Namespace) -> int:
    from ddp_hpc.workflow import driver

    return driver.run(_project(), options.study, options.profile, options.launcher, options.snakemake)


def _status(options: argparse.Namespace) -> int:
    from ddp_hpc.workflow import status

    study_runs = _project().study_runs(options.study)
    found = status.overview(study_runs)
    return _say_json(found) if options.json else _say("\n".join(status.lines(study_runs, found)))


def _data(options: argparse.Namespace) -> int:
    from ddp_hpc.data._download import fetch

    project = _project()
    source = options.source or project.dataset_source(options.dataset)
    return _say(fetch(options.dataset, project.data_folder, source))


def _train(options: argparse.Namespace) -> int:
    from ddp_hpc.execution.supervisor import supervise
    from ddp_hpc.runs.attempt import RunFolder

    root = _root()
    limit = None if options.time_limit_min is None else 60 * options.time_limit_min
    launcher = shlex.split(options.launcher)
    folder, data = root / "results" / "runs" / options.run, root / "results" / "data"
    if RunFolder(folder).finished and not options.again:
        said = f"{options.run} has a finished record; `--again` trains it again, and the new record takes its place"
        if options.trace:
            raise ValueError(f"nothing was traced: {said}")
        return _say(f"nothing to do: {said}")
    outcome = supervise(folder, launcher, data, limit, options.trace, options.checkpoint_every_s)
    line = f"{options.run}: {outcome.status}{f': {outcome.reason}' if outcome.reason else ''}\n"
    with suppress(OSError):  # a full disk must not make a failure of a result
        os.write(1, line.encode())
    return outcome.exit_code


def _root() -> Path:
    """Return the project's folder without importing what reads studies: a training starts quickly."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "workflow" / "Snakefile").is_file()), here)


def _table(options: argparse.Namespace) -> int:
    from ddp_hpc.analysis import tables

    project = _project()
    folder = project.study_folder(options.study) / "tables"
    file = tables.make(options.name, project.study_runs(options.study), folder)
    return _say("\n".join([*tables.lines(options.name, file), str(file)]))


def _figure(options: argparse.Namespace) -> int:
    from ddp_hpc.analysis import figures

    project = _project()
    folder = project.study_folder(options.study)
    study = project.expansion(options.study).study
    return _say(figures.make(options.name, study, folder / "tables", folder / "figures"))


def _report(options: argparse.Namespace) -> int:
    from ddp_hpc.analysis.report import page

    project = _project()
    return _say(page.make(project.study_runs(options.study), project.study_folder(options.study)))


def _compare(options: argparse.Namespace) -> int:
    from ddp_hpc.analysis import compare

    return compare.main(options.a, options.b, options.tolerance / 100, options.change / 100, options.all, options.json)


def _diff(options: argparse.Namespace) -> int:
    from ddp_hpc.analysis.compare import run_diff

    return run_diff.main(options.a, options.b, options.json)


def _doctor(options: argparse.Namespace) -> int:
    from ddp_hpc import doctor
    from ddp_hpc.doctor import machine_file

    return machine_file.main() if options.machine else doctor.main(as_json=options.json)


def _bench(options: argparse.Namespace) -> int:
    from ddp_hpc import bench

    return bench.main(options)


def _schema(options: argparse.Namespace) -> int:
    from ddp_hpc.config import reference

    return _say_json(reference.schema())


def _say(text: object) -> int:
    print(text)
    return 0


def _say_json(values: Any) -> int:
    return _say(json.dumps(values, indent=1))


VERBS = {
    "list": (
        _list,
        "list studies, the points of one, or models, datasets, exchanges, tables, figures",
        takes.listed,
    ),
    "plan": (_plan, "show what will run, why, and for about how long", takes.plan),
    "run": (_run, "train the missing runs of a study, then make its tables, figures and report", takes.run),
    "status": (
        _status,
        "show the running, waiting and failed runs of a study, with reasons and node-hours",
        takes.status,
    ),
    "data": (_data, "fetch a dataset and check it", takes.data),
    "train": (_train, "train one planned run now, on this machine", takes.train),
    "table": (_table, "make one table of a study from the records so far", takes.made),
    "figure": (_figure, "draw one figure of a study from its tables", takes.made),
    "report": (_report, "write the report of a study from its tables and figures", takes.of_a_study),
    "compare": (
        _compare,
        "test which points of two result sets differ by more than the noise, and whether they are better or worse",
        takes.compare,
    ),
    "diff": (
        _diff,
        "show what differs between two runs: spec, code, versions, hosts, clocks, environment, job",
        takes.diff,
    ),
    "doctor": (_doctor, "check this machine: what it offers, what is missing, and what to do", takes.doctor),
    "bench": (
        _bench,
        "time planning, the workflow, exchanges, meters or folded biases on this machine: some minutes",
        takes.bench,
    ),
    "schema": (_schema, "print the JSON Schema of study files, for editors", takes.none),
}


if __name__ == "__main__":
    main()
