"""The arguments and `--help` texts of each verb of the command line."""

import argparse
from pathlib import Path

# messages of the test of github.com/baidu-research/baidu-allreduce, in float32; it begins with an empty one
BAIDU_FLOATS = (32, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 8_388_608, 67_108_864, 536_870_912)


def as_json(parser: argparse.ArgumentParser) -> None:
    """Rows as JSON."""
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")


def of_a_study(parser: argparse.ArgumentParser) -> None:
    """A study, by name."""
    parser.add_argument("study", help="name of the study, config/studies/NAME.yaml")


def listed(parser: argparse.ArgumentParser) -> None:
    """Of `list`."""
    parser.add_argument(
        "what",
        nargs="?",
        metavar="STUDY|models|datasets|exchanges|tables|figures",
        help="what to list: the points of a study, or names and options of a kind; by default the studies",
    )
    as_json(parser)


def status(parser: argparse.ArgumentParser) -> None:
    """Of `status`."""
    of_a_study(parser)
    as_json(parser)


def plan(parser: argparse.ArgumentParser) -> None:
    """Of `plan`."""
    status(parser)
    parser.add_argument("--all", action="store_true", help="list every run, finished ones too, instead of each reason")
    parser.add_argument(
        "--profile",
        help="also show what runs request from this profile's machine, e.g. profiles/slurm; fail if one cannot fit",
    )
    parser.add_argument(
        "--write", action="store_true", help="write spec.json files, so that `ddp-hpc train RUN` can be called by hand"
    )


def run(parser: argparse.ArgumentParser) -> None:
    """Of `run`."""
    of_a_study(parser)
    parser.add_argument("--profile", default="profiles/default", help="the workflow profile (default: %(default)s)")
    parser.add_argument(
        "--launcher",
        help="command that starts the ranks, instead of the profile's, e.g. 'mpiexec', 'srun --mpi=pmix'; without -n, "
        "which each run adds with its number of ranks",
    )
    parser.add_argument("snakemake", nargs="*", metavar="-- ARG", help="further arguments for snakemake, after --")


def data(parser: argparse.ArgumentParser) -> None:
    """Of `data`."""
    parser.add_argument("dataset", help="name of the dataset; `ddp-hpc list datasets` lists them")
    parser.add_argument(
        "--from", dest="source", metavar="PATH|URL", help="where to fetch it from, instead of its publisher"
    )


def train(parser: argparse.ArgumentParser) -> None:
    """Of `train`."""
    parser.add_argument("run", help="name of the run: its folder in results/runs")
    parser.add_argument(
        "--launcher",
        default="",
        help="complete command that starts the ranks, with -n and the run's number of ranks, e.g. 'mpiexec -n 4'; "
        "empty for one rank",
    )
    parser.add_argument(
        "--trace",
        type=_steps,
        metavar="FIRST-LAST",
        help="trace these steps, e.g. 100-110, into `trace/` in the run's folder, for https://ui.perfetto.dev; each "
        "runs twice, so that neither result nor times change",
    )
    parser.add_argument("--again", action="store_true", help="train a finished run again and replace its record")
    parser.add_argument("--time-limit-min", type=float, help="end the run as `timeout` after this many minutes")
    parser.add_argument(
        "--checkpoint-every-s",
        type=float,
        default=600.0,
        help="seconds between checkpoints; 0: only when the run is asked to end, by SIGUSR1, SIGTERM or its time limit "
        "(default: %(default)g)",
    )


def doctor(parser: argparse.ArgumentParser) -> None:
    """Of `doctor`."""
    as_json(parser)
    parser.add_argument("--machine", action="store_true", help="print only a machine file for this cluster, from sinfo")


def _steps(text: str) -> list[int]:
    """Return `100-110` as two numbers."""
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or not 1 <= int(first) <= int(last or first):
        raise argparse.ArgumentTypeError(f"given {text!r}, expected: FIRST-LAST, counted from 1, e.g. 100-110")
    return [int(first), int(last or first)]


def made(parser: argparse.ArgumentParser) -> None:
    """Of `table` and `figure`."""
    of_a_study(parser)
    parser.add_argument("name", help="name of the table or figure; `ddp-hpc list tables` and `list figures` list them")


def compare(parser: argparse.ArgumentParser) -> None:
    """Of `compare`."""
    what = (
        "a study; STUDY@before, the newest runs of its specs with other code; a folder of results; a table runs.parquet"
    )
    parser.add_argument("a", metavar="A", help=f"the old results: {what}")
    parser.add_argument("b", metavar="B", help="the new results: the same")
    parser.add_argument(
        "--tolerance", type=_percent, default=1.0, metavar="PERCENT",
        help="ignore differences smaller than this, even significant ones (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--change", type=_percent, default=5.0, metavar="PERCENT",
        help="say how many repeats would detect a change of this size (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="list every comparison, not only the differences")
    as_json(parser)


def diff(parser: argparse.ArgumentParser) -> None:
    """Of `diff`."""
    for name in ("a", "b"):
        parser.add_argument(name, metavar="RUN", help="its name, a unique prefix of it, or its folder")
    as_json(parser)


def _percent(text: str) -> float:
    value = float(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"given {text}, expected: a number above 0 up to 100")
    return value


def bench(parser: argparse.ArgumentParser) -> None:
    """Of `bench`."""
    parts = parser.add_subparsers(dest="part", metavar="PART", title="parts", help="what to time")
    planning = parts.add_parser("planning", help="planning, and what the workflow adds to each run (the default)")
    planning.add_argument("--points", type=int, nargs="+", help="sizes of the studies (default: 100 1000 5000)")
    planning.add_argument("--runs", type=int, help="number of runs that the workflow is timed on (default: 200)")
    exchange = parts.add_parser("exchange", help="every exchange at message sizes from 4 bytes to 256 MB")
    exchange.add_argument(
        "--ranks", type=int, nargs="+", help="numbers of ranks (default: 2, 4, 8, ... as far as there are cores)"
    )
    exchange.add_argument(
        "--exchanges",
        nargs="+",
        metavar="EXCHANGE",
        help="names, or '{name: NAME, OPTION: VALUE}' (default: all that run here)",
    )
    exchange.add_argument(
        "--sizes", type=int, nargs="+", help="message sizes in bytes, multiples of 4 (default: powers of 4)"
    )
    exchange.add_argument(
        "--baidu", dest="sizes", action="store_const", const=[4 * floats for floats in BAIDU_FLOATS],
        help="the sizes of baidu-allreduce's test, 32 to 536,870,912 floats, as far as they fit into memory",
    )  # fmt: skip
    _timed(exchange, rounds=5, of="measurements of each exchange", launched=True, written="exchange")
    meters = parts.add_parser("meters", help="the overhead of clocks and meters, on CPU ranks")
    meters.add_argument("--ranks", type=int, default=2, help="number of ranks, on this node (default: %(default)s)")
    _timed(meters, rounds=20, of="number of rounds of four blocks", launched=True)
    meters.add_argument("--steps", type=int, default=100, help="steps of a block (default: %(default)s)")
    realign = parts.add_parser("realign", help="a layer with its bias folded into its weights, against addmm")
    realign.add_argument(
        "--shapes",
        nargs="+",
        metavar="ROWSxINPUTSxOUTPUTS",
        help="shapes of layers, e.g. 75x600x150 (default: five shapes)",
    )
    realign.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device (default: %(default)s)")
    realign.add_argument(
        "--dtype", choices=("float32", "float64", "float16"), default="float32", help="type (default: %(default)s)"
    )
    _timed(realign, rounds=9, of="measurements of each variant", written="realign")


def _timed(parser: argparse.ArgumentParser, rounds: int, of: str, launched: bool = False, written: str = "") -> None:
    """Of several parts of `bench`."""
    parser.add_argument("--rounds", type=int, default=rounds, help=f"{of} (default: %(default)s)")
    if launched:
        parser.add_argument(
            "--launcher", default="mpiexec", help="command that starts the ranks, without -n (default: %(default)s)"
        )
    if written:
        folder = Path("results/bench", written)
        parser.add_argument("--out", type=Path, default=folder, help="folder of the results (default: %(default)s)")


def none(parser: argparse.ArgumentParser) -> None:
    """This verb takes none."""
