"""Checkpoints on the disk: which are kept, which are not used, and what a full disk does."""

import json

import pytest
from interrupted import check_same, run

from ddp_hpc.training import checkpoint


def test_a_checkpoint_after_the_last_one_takes_its_place(comm, folder):
    run(comm, folder, every_s=1e-6)
    comm.Barrier()
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    assert files == ["checkpoint.json", *(f"step-50/rank-{rank}.pt" for rank in range(comm.size))]


def break_manifest(folder, **fields):
    file = folder / "checkpoint.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


FOREIGN = [
    ("another world size", lambda folder: break_manifest(folder, world_size=77), "its world_size is 77, not "),
    ("another code", lambda folder: break_manifest(folder, code_hash="d"), "its code_hash is d, not c"),
    ("another spec", lambda folder: break_manifest(folder, spec_hash="0"), "its spec_hash is 0, not "),
    ("another torch", lambda folder: break_manifest(folder, torch="1.0"), "its torch is 1.0, not "),
    (
        "half a manifest",
        lambda folder: (folder / "checkpoint.json").write_text('{"format": 1, "ru'),
        "its format is None",
    ),
    ("no files", lambda folder: break_manifest(folder, files=[]), "checkpoint.json is not whole"),
    ("a file is gone", lambda folder: next(folder.rglob("rank-0.pt")).unlink(), "rank 0: [Errno 2]"),
    ("half a file", lambda folder: halve(folder), "rank 0: rank-0.pt is {'bytes': "),
    ("a bit is wrong", lambda folder: flip(folder), "it is broken, or of another checkpoint"),
]


def halve(folder):
    file = next(folder.rglob("rank-0.pt"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(folder):
    file = next(folder.rglob("rank-0.pt"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(("how", "damage", "told"), FOREIGN, ids=[how for how, _, _ in FOREIGN])
def test_a_checkpoint_that_is_broken_or_of_another_run_is_named_and_not_used(comm, folder, how, damage, told):
    whole = run(comm)
    run(comm, folder, ask_at=(0, 10))
    comm.Barrier()
    if comm.rank == 0:
        damage(folder)
    comm.Barrier()
    again = run(comm, folder)
    check_same(comm, again, whole)
    assert again[0].resumes == 0
    if comm.rank == 0:
        (said,) = again[2]
        assert said.startswith(f"the checkpoint in {folder} is not used, training starts anew: ")
        assert told in said


def test_a_checkpoint_of_ranks_that_shared_the_work_otherwise_is_not_used(comm, folder):
    """As if they had come to sit on other nodes: each updates another part of the model."""
    if comm.size == 1:
        pytest.skip("one rank has it all")
    groups = {"name": "hierarchical", "ranks_per_group": 1}
    run(comm, folder, ask_at=(0, 10), momentum=0.9, exchange=groups, owner={"spec_hash": "s"})
    result, _, said = run(comm, folder, momentum=0.9, exchange="hierarchical", owner={"spec_hash": "s"})
    assert result.resumes == 0
    if comm.rank == 0:
        assert "ranks sit otherwise on nodes" in said[0]


@pytest.mark.parametrize("guilty", [0, -1])
def test_a_full_disk_on_one_rank_ends_no_training_and_leaves_the_checkpoint_before(comm, folder, monkeypatch, guilty):
    whole = run(comm, momentum=0.9)
    run(comm, folder, ask_at=(0, 10), momentum=0.9)
    comm.Barrier()

    class Full(checkpoint._Out):
        def __init__(self, file):
            super().__init__(full if comm.rank == guilty % comm.size else file)

    monkeypatch.setattr(checkpoint, "_Out", Full)
    with open("/dev/full", "wb", buffering=0) as full:
        again = run(comm, folder, every_s=1e-6, momentum=0.9)
    check_same(comm, again, whole)
    comm.Barrier()
    if comm.rank == 0:
        assert f"no checkpoint of step 30, training does not need it: rank {guilty % comm.size}: OSError" in again[2][1]
        assert "No space left on device" in again[2][1]
        assert json.loads((folder / "checkpoint.json").read_text())["step"] == 20
        assert [path.name for path in folder.glob("step-*")] == ["step-20"]
