"""Files in a project's folders are choices beside those of the package."""

import sys
from pathlib import Path

import pytest

from ddp_hpc.config import catalog
from ddp_hpc.config.catalog import CatalogError

MODEL = '"""A small one."""\n\n\ndef build(input_shape, outputs, *, width: PositiveInt = 3):\n    return width\n'


@pytest.fixture
def project(tmp_path):
    """A project in use, with a model."""
    write(tmp_path, "models/small.py", MODEL)
    catalog.use_project(tmp_path)
    yield tmp_path
    catalog.use_project(None)


def write(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)


def test_a_file_of_the_project_is_a_choice_with_options(project):
    assert {"small", "mlp"} <= set(catalog.names("model"))
    assert catalog.path("model", "small") == project / "models/small.py"
    assert catalog.check_options("model", "small", {"width": 4.0}) == {"width": 4}
    assert catalog.summary("model", "small") == "A small one."


def test_another_project_has_other_choices(project, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    write(other, "models/small.py", MODEL.replace("width", "depth"))
    assert "width" in catalog.options("model", "small")
    catalog.use_project(other)
    assert "depth" in catalog.options("model", "small")
    catalog.use_project(None)
    assert "small" not in catalog.names("model")


def test_a_name_that_the_package_has_is_an_error_that_names_both(project):
    write(project, "models/mlp.py", MODEL)
    with pytest.raises(CatalogError) as error:
        catalog.path("model", "small")
    assert str(project / "models/mlp.py") in str(error.value)
    assert str(catalog.PACKAGE / "models/mlp.py") in str(error.value)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("models/wrong.py", "x = 1\ndef build(:\n", r"models/wrong.py:2: invalid syntax"),
        ("models/wrong.py", "", r"models/wrong.py has no function build\(\)"),
        ("data/wrong.py", "SHAPE = (1,)\ndef build(folder): ...\n", r"data/wrong.py lacks TASK and OUTPUTS"),
        ("exchange/wrong.py", "OVERLAPS = False\ndef make(a, b, c, d): ...\n", r"exchange/wrong.py lacks SYNCHRONOUS"),
        ("figures/wrong.py", "def draw(tables, study, coverage): ...\n", r"figures/wrong.py lacks INPUTS"),
    ],
)
def test_a_broken_file_is_told_before_anything_runs(project, file, text, message):
    assert catalog.broken() == []
    write(project, file, text)
    kind = next(kind for kind, one in catalog.KINDS.items() if one.own_folder == file.split("/")[0])
    with pytest.raises(CatalogError, match=message):
        catalog.check(kind, "wrong")
    assert len(catalog.broken()) == ("invalid syntax" in message)


TOP = "def top5(outputs, targets):\n    return outputs\n"


def test_a_metric_of_ones_own_is_a_function_of_its_file(project):
    write(project, "models/judged.py", f'METRICS = {{"top5": "higher"}}\n{TOP}{MODEL}')
    assert catalog.metrics("model", "judged") == {"top5": "higher"}
    assert catalog.metrics_of("judged", "digits") == {"top5": "higher"}
    assert catalog.metrics_of("small", "digits") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('METRICS = {"top5": top5}\n' + TOP, 'judged.py:1: METRICS: given top5, expected: {"NAME": "higher"}'),
        ('METRICS = {"top5": "more"}\n' + TOP, "judged.py:1: METRICS: given 'more'"),
        ("METRICS = [1]\n", "judged.py:1: METRICS: given [1]"),
        ('METRICS = {"top1": "higher"}\n' + TOP, "'top1' is no function of this file"),
        ('METRICS = {"error": "lower"}\n' + TOP.replace("top5", "error"), "'error' is a metric of ddp-hpc"),
    ],
)
def test_a_metric_that_cannot_be_one_is_told_before_anything_runs(project, text, message):
    write(project, "models/judged.py", text + MODEL)
    with pytest.raises(CatalogError) as error:
        catalog.check("model", "judged")
    assert message in str(error.value)


def test_a_metric_of_two_files_is_an_error_that_names_both(project):
    for folder, rest in (("models", MODEL), ("data", MODEL)):
        write(project, f"{folder}/judged.py", f'METRICS = {{"top5": "higher"}}\n{TOP}{rest}')
    with pytest.raises(CatalogError) as error:
        catalog.metrics_of("judged", "judged")
    assert all(str(project / folder / "judged.py") in str(error.value) for folder in ("models", "data"))


def test_a_choice_imports_what_lies_beside_it_and_never_hides_a_package(project, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(project, "models/_parts.py", "from . import _deeper\nPART = _deeper.DEEP\n")
    write(project, "models/_deeper.py", "DEEP = 5\n")
    write(project, "helpers_of_mine/net.py", "NET = 7\n")
    write(project, "numpy/__init__.py", "")
    imports = "from helpers_of_mine.net import NET\nimport numpy\nfrom ._parts import PART\n"
    write(project, "models/user.py", f"{imports}\n\ndef build(input_shape, outputs): ...\n")
    module = catalog.load("model", "user")
    assert (module.PART, module.NET) == (5, 7)
    assert hasattr(module.numpy, "ndarray")
    assert catalog.load("model", "mlp").__name__ == "ddp_hpc.models.mlp"
