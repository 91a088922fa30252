"""Ranks and GPUs fit together, or there is an error before training."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ddp_hpc.config import catalog, grid, spec
from ddp_hpc.training.placement import (
    LaunchError,
    Placement,
    _verified,
    check_exchange,
    check_gpus,
    choose_device,
    choose_slice,
)
from ddp_hpc.workflow import plan

STUDIES = sorted((Path(__file__).parents[2] / "config" / "studies").glob("*.yaml"))

SPEC = {
    "model": "mlp",
    "dataset": "digits",
    "exchange": "ring",
    "world_size": 4,
    "batch_size": 1,
    "learning_rate": 0.1,
    "budget": {"steps": 1},
}


def place(rank, local_rank):
    return Placement(
        rank=rank,
        world_size=4,
        host="a",
        local_rank=local_rank,
        hosts=2,
        blocks=(2, 2),
        core_set=(0,),
        threads=1,
        cores=2,
        oversubscribed=False,
        verified=None,
    )


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs as torch would show them; returns the list of those that were made current."""
    return show_gpus(monkeypatch, 2)


def show_gpus(monkeypatch, count):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"GPU-{device.index}"))
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


def test_the_device_is_the_local_rank_modulo_the_visible_ones(two_gpus):
    comm = SimpleNamespace(allgather=lambda mine: [mine, ("b", "GPU-9")])
    found = [choose_device(spec.load(SPEC), place(rank, rank % 3), comm).index for rank in range(4)]
    assert found == [0, 1, 0, 0]
    assert [device.index for device in two_gpus] == found


def test_ranks_that_would_share_a_gpu_are_refused_before_it_is_used(two_gpus):
    comm = SimpleNamespace(allgather=lambda mine: [mine, ("a", "GPU-0")])
    with pytest.raises(LaunchError, match="ranks 0 and 1 share GPU GPU-0 on a"):
        choose_device(spec.load(SPEC), place(2, 2), comm)
    assert two_gpus == []


def test_the_cpu_is_used_where_it_is_asked_for(two_gpus):
    comm = SimpleNamespace(allgather=lambda mine: [mine])
    assert choose_device(spec.load(SPEC | {"device": "cpu"}), place(0, 0), comm).type == "cpu"


def test_a_gpu_that_is_asked_for_and_missing_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LaunchError, match="device: cuda, but torch sees no GPU on a"):
        choose_device(spec.load(SPEC | {"device": "cuda"}), place(0, 0), comm=None)


def test_ranks_with_a_gpu_each_pass_on_one_node_and_on_several():
    check_gpus([("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-3")], spec.load(SPEC))
    check_gpus([("a", None), ("b", None)], spec.load(SPEC))


SHARED = [("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-2"), ("a", "GPU-2")]


def test_two_ranks_on_one_gpu_are_refused_by_name_unless_the_spec_allows_it():
    with pytest.raises(LaunchError, match=r"ranks 1 and 3 share GPU GPU-2 on a: .* `share_gpu: true`"):
        check_gpus(SHARED, spec.load(SPEC))
    check_gpus(SHARED, spec.load(SPEC | {"share_gpu": True}))


def test_an_exchange_over_nccl_refuses_to_share_and_names_those_that_do(monkeypatch):
    constants = catalog.constants
    one_each = lambda kind, name: constants(kind, name) | ({"ONE_GPU_EACH": True} if name == "ring" else {})
    monkeypatch.setattr(catalog, "constants", one_each)
    given = spec.load(SPEC | {"share_gpu": True})
    with pytest.raises(LaunchError, match=r"on a, which exchange 'ring' cannot: .*mpi_allreduce") as said:
        check_gpus(SHARED, given)
    assert not {"ring", "none"} & set(str(said.value).rsplit(": ")[-1].split(", "))
    check_gpus(SHARED[:3], given)


def test_gpus_on_some_ranks_only_are_refused():
    with pytest.raises(LaunchError, match=r"ranks \[1\] of 3 see no GPU"):
        check_gpus([("a", "GPU-1"), ("b", None), ("a", "GPU-2")], spec.load(SPEC | {"share_gpu": True}))


PACKED, BY_TWO = {"placement": "packed"}, {"placement": "spread", "ranks_per_node": 2}


@pytest.mark.parametrize(
    ("asked", "blocks", "hosts", "full", "verified"),
    [
        ({}, (3, 1), 2, 2, None),
        (PACKED, (4,), 1, None, True),
        (PACKED, (4,), 1, 4, True),
        (PACKED, (2, 2), 2, 2, True),
        (PACKED, (3, 1), 2, 3, True),
        (PACKED, (1, 3), 2, 3, False),
        (PACKED, (2, 2), 2, 3, False),
        (PACKED, (3, 1), 2, 4, False),
        (PACKED, (1, 1, 1, 1), 2, 1, False),
        (PACKED, (2, 2), 2, None, None),
        ({"placement": "spread"}, (1, 1, 1, 1), 4, 4, True),
        ({"placement": "spread"}, (1, 1, 1, 1), 2, 4, False),
        ({"placement": "spread"}, (4,), 1, None, False),
        (BY_TWO, (2, 2), 2, None, True),
        (BY_TWO, (3, 1), 2, 3, False),
        (BY_TWO, (1, 2, 1), 2, 4, False),
    ],
)
def test_consecutive_ranks_fill_a_node_or_as_many_of_it_as_asked(asked, blocks, hosts, full, verified):
    """`full` ranks fill a node; ranks dealt out in turn sit in more blocks than there are nodes."""
    assert _verified(spec.load(SPEC | asked), hosts, blocks, full) is verified


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_a_study_that_is_shipped_trains_beside_gpus_or_says_that_it_needs_as_many_as_ranks(monkeypatch, study, gpus):
    """All ranks sit on one node; a study that does not say `device: cuda` is not meant to lose runs there."""
    show_gpus(monkeypatch, gpus)
    here = replace(place(0, 0), hosts=1)
    specs = grid.expand(study).specs
    ranks = {(str(one.exchange), one.world_size, one.device, one.share_gpu): one for one in specs}
    for one in ranks.values():
        gpu_of = [f"GPU-{rank % gpus}" for rank in range(one.world_size)]
        comm = SimpleNamespace(allgather=lambda mine, gpu_of=gpu_of: [(mine[0], mine[1] and gpu) for gpu in gpu_of])
        refused = plan.refused_beside(one, gpus)  # what planning says of it
        assert refused == (one.device == "cuda" and one.world_size > gpus and not one.share_gpu)
        if refused:
            with pytest.raises(LaunchError, match="share GPU"):
                choose_device(one, here, comm)
        else:
            check_exchange(one, here, choose_device(one, here, comm))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"device": "cpu"}, r"'torch_ddp \(captured, tuned\)' works on cuda, given device=cpu"),
        ({"capture": "off"}, r"capture=off with exchange=torch_ddp \(captured.*is a CUDA graph; expected: auto"),
        ({"dtype": "float64"}, r"dtype=float64 with exchange=torch_ddp \(captured.*expected: float32"),
        ({"compile": True}, r"compile=True with exchange=torch_ddp \(captured.*expected: False"),
    ],
)
def test_ddp_in_a_graph_is_refused_by_name_where_it_cannot_be(fields, told):
    captured = {"name": "torch_ddp", "tuned": True, "captured": True}
    with pytest.raises(ValueError, match=told):
        spec.load(SPEC | {"exchange": captured} | fields)
    for option, value in (("tuned", False), ("find_unused_parameters", True)):
        with pytest.raises(ValueError, match=f"'captured' .* where it means nothing; expected: with {option}"):
            spec.load(SPEC | {"exchange": captured | {option: value}})
    anywhere = spec.load(SPEC | {"exchange": captured})
    assert [plan.refused_beside(anywhere, gpus) for gpus in (0, 1, 4)] == [True, True, False]
    with pytest.raises(LaunchError, match="works on cuda, and this run is on cpu"):
        check_exchange(anywhere, place(0, 0), torch.device("cpu"))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("MIG-a,MIG-b", ["MIG-a", "MIG-b", "MIG-a"]),
        ("MIG-a", ["MIG-a"] * 3),
        ("GPU-a,GPU-b", ["GPU-a,GPU-b"] * 3),
        ("0,1", ["0,1"] * 3),
        ("", [""] * 3),
    ],
)
def test_of_slices_of_a_gpu_each_rank_sees_its_own(visible, expected):
    """A process sees one MIG slice only, the first that is listed."""
    for local_rank, own in enumerate(expected):
        environment = {"CUDA_VISIBLE_DEVICES": visible}
        choose_slice(environment, local_rank)
        assert environment == {"CUDA_VISIBLE_DEVICES": own}
    environment = {}
    choose_slice(environment, 0)
    assert environment == {}


def test_ranks_on_slices_of_one_gpu_pass_whatever_uuid_torch_shows(monkeypatch):
    show_gpus(monkeypatch, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-b")
    comm = SimpleNamespace(allgather=lambda mine: [("a", "MIG-a"), mine])
    assert choose_device(spec.load(SPEC), place(1, 1), comm).index == 0
    comm = SimpleNamespace(allgather=lambda mine: [("a", "MIG-b"), mine])
    with pytest.raises(LaunchError, match="ranks 0 and 1 share GPU MIG-b"):
        choose_device(spec.load(SPEC), place(1, 1), comm)
