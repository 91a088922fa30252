"""A pack is a function of records and study, and whoever changes something in it is found out."""

from dataclasses import replace

import factory
import pytest

from ddp_hpc.publication.publish import Asked, publish
from ddp_hpc.publication.verify import verify
from ddp_hpc.runs.project import Project

SAID = {
    "creators": [{"name": "Carberry, Josiah", "orcid": "0000-0002-1825-0097", "affiliation": "Brown University"}],
    "licence": "CC-BY-4.0",
}
GRID = [
    {"exchange": "none", "world_size": 1, "batch_size": 16, "learning_rate": [0.1, 5.0]},
    {"exchange": "ring", "world_size": 2, "batch_size": 16, "learning_rate": [0.1, 5.0]},
]


def trained(spec):
    result = factory.realistic(spec)
    hosts = {"ranks": [{"rank": rank, "host": "alpha7"} for rank in range(spec.world_size)]}
    return replace(
        result,
        columns={"ended_at": "2026-11-28T12:00:00+00:00", "wall_s": 3.0, "hosts": 1},
        provenance=hosts | {"software": {"torch": "2.13.0"}, "command": "mpiexec /home/jo/bin/python"},
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    factory.made_up(
        root, trained, grid=GRID, tables=["runs", "winners", "scaling"], figures=["speedup"], publication=SAID
    )
    return Project(root)


def test_whole(project, capsys):
    code = publish(project, "made_up", Asked(redact=True))
    said = capsys.readouterr()
    print(said.out, said.err)
    assert code == 0
    from pathlib import Path

    p = Path(said.out.strip())
    for f in sorted(p.rglob("*")):
        print(f.relative_to(p))
    print((p / "README.md").read_text())
    print((p / "ro-crate-metadata.json").read_text()[:3000])
    print((p / "environment/requirements.lock").read_text())
    c = verify(p)
    print(capsys.readouterr().out)
    assert c == 0; import shutil; shutil.rmtree("/tmp/data/pack", True); shutil.copytree(p, "/tmp/data/pack")
