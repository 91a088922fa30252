"""Programs of others read a pack without complaint, and each refuses what it can see of one that was changed.

RO-Crate: roc-validator, offline; citation: cffconvert; columns and digests: frictionless; metadata: DataCite's schema.
"""

import json
import shutil
import subprocess
from pathlib import Path

import frictionless
import jsonschema
import pytest
from cached_environment import installed
from test_published_packs import SCHEMAS, project, published, replaced  # noqa: F401  the fixtures

from ddp_hpc.publication import pack as names
from ddp_hpc.publication.crate import CONTEXT
from ddp_hpc.publication.verify import verify

PINS = Path(__file__).with_name("validators.txt")
# puts the context of RO-Crate into the validator's cache, so that no network is asked: that of 1.3, as the package
# rocrate has it, with the names of bioschemas as 1.1 has them
WARM = """
import sys
from importlib.resources import files

from requests_cache import CachedRequest, CachedResponse, CachedSession

cache, url = sys.argv[1:]
context = (files("rocrate") / "data" / "ro-crate.jsonld").read_bytes()
CachedSession(cache, backend="sqlite", expire_after=-1).cache.save_response(
    CachedResponse(
        status_code=200,
        url=url,
        content=context.replace(b"bioschemas.org/terms/", b"bioschemas.org/"),
        request=CachedRequest(method="GET", url=url),
        headers={"Content-Type": "application/ld+json"},
    )
)
"""


@pytest.fixture(scope="module")
def tools():
    """The folder of the programs, with a warm cache."""

    def warm(folder):
        subprocess.run([folder / "bin" / "python", "-c", WARM, folder / "context", CONTEXT], check=True)

    return installed(PINS, warm, WARM)


def complaints(tools, pack, tmp_path, severity="recommended"):
    """What roc-validator says of a crate, by severity."""
    told = tmp_path / "told.json"
    command = [tools / "bin" / "rocrate-validator", "validate", "--offline", "--cache-path", tools / "context"]
    command += ["--no-paging", "--profile-identifier", "workflow-run-crate", "--requirement-severity", severity]
    command += ["--output-format", "json", "--output-file", told, pack]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.is_file(), done.stdout + done.stderr
    return [(one["severity"], one["message"]) for one in json.loads(told.read_text())["issues"]]


def cited(tools, pack):
    """Whether cffconvert takes the citation."""
    command = [tools / "bin" / "cffconvert", "--validate", "--infile", pack / names.CITATION]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def tabled(pack):
    """Whether frictionless takes all tables and records."""
    return bool(frictionless.validate(str(pack / names.DATA_PACKAGE)).valid)


def deposited(pack):
    """Whether DataCite's schema takes the metadata."""
    rules = json.loads((SCHEMAS / "datacite-v4.5.json").read_text())
    return jsonschema.Draft7Validator(rules).is_valid(json.loads((pack / names.DATACITE).read_text()))


def test_programs_of_others_take_a_pack(tools, published, tmp_path):  # noqa: F811
    found = complaints(tools, published, tmp_path)

    assert [message for severity, message in found if severity == "REQUIRED"] == []
    assert len(found) <= 10, found
    assert (cited(tools, published), tabled(published), deposited(published)) == (True, True, True)


def test_whoever_can_see_a_change_refuses_it(tools, published, tmp_path, capsys):  # noqa: F811
    """In five places: a table, a record, a citation, the metadata of the repository, the crate."""
    folder = shutil.copytree(published, tmp_path / "pack")
    replaced(folder / "tables" / "runs.csv", "crashed", "Crashed")
    next(folder.glob("runs/*/steps.parquet")).write_bytes(b"PAR1")
    replaced(folder / names.CITATION, "authors:", "writers:")
    replaced(folder / names.DATACITE, '"titles"', '"title"')
    replaced(folder / names.CRATE, '"datePublished"', '"published"')

    assert verify(folder) == 1
    said = capsys.readouterr().out
    for name in ("tables/runs.csv", "steps.parquet", names.CITATION, names.DATACITE, names.CRATE):
        assert f"{name} has changed" in said
    assert (cited(tools, folder), tabled(folder), deposited(folder)) == (False, False, False)
    found = complaints(tools, folder, tmp_path, "required")
    assert any("datePublished" in message for _, message in found), found
