"""The studies of SHM-Learn-Dist are the published grids, and say how to get data that are not here."""

import itertools
from pathlib import Path

import pandas as pd
import pytest
from sandbox import Sandbox

from ddp_hpc.config import grid

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "config" / "studies"
SAME = ("momentum", "optimizer", "sampling", "dtype")
PUBLISHED = ROOT / "results" / "published" / "shm_learn_dist"


def specs(name):
    return grid.expand(STUDIES / f"{name}.yaml").specs


@pytest.mark.parametrize("name", ["cifar10_alexnet", "fashion_mnist_alexnet"])
def test_the_search_is_the_published_one_point_by_point(name):
    """Section 5: six batch sizes, nine rates, four numbers of workers: 216 runs of 307,200 images, none twice."""
    batches, rates = (16, 32, 64, 128, 256, 512), [round(0.1 * n, 1) for n in range(1, 10)]
    expected = sorted(itertools.product((1, 2, 4, 8), batches, rates))

    found = specs(name)

    points = sorted((spec.world_size, spec.batch_size, spec.learning_rate) for spec in found)
    assert points == expected
    assert len(set(points)) == len(found) == 216
    areas = pd.read_csv(PUBLISHED / "loss_areas.csv")
    assert points == sorted(zip(areas["workers"], areas["batch_size"], areas["learning_rate"], strict=True))
    assert {spec.samples_asked for spec in found} == {307_200}
    assert all(spec.steps_asked * spec.world_size * spec.batch_size == 307_200 for spec in found)
    assert {spec.exchange.name for spec in found if spec.world_size == 1} == {"none"}
    assert {spec.exchange.name for spec in found if spec.world_size > 1} == {"gather_server"}
    assert {spec.dataset.name for spec in found} == {name.removesuffix("_alexnet")}
    decay = {(spec.model.name, spec.model.options.get("penalty", 0.004), spec.weight_decay) for spec in found}
    assert decay == {("alexnet_l2", 0.004, 0) if name.startswith("cifar10") else ("alexnet", 0.004, 0.004)}
    assert not any(spec.dataset.options for spec in found)
    assert grid.expand(STUDIES / f"{name}.yaml").study.rules.loss_threshold == 1.8


def test_the_server_has_the_published_workers_and_steps():
    """Section 6: 1, 2, 4 and 8 workers at the batch sizes of table 5.1; with its rates, and those of another report."""
    found = [spec for spec in specs("cifar10_server") if spec.seed == 0]
    all_of_them = [spec for spec in found if spec.exchange.name in ("none", "gather_server")]  # as MPI_Gather has it
    rates = {0.9: {1: 0.001, 2: 0.001, 4: 0.001, 8: 0.001}, 0: {1: 0.5, 2: 0.5, 4: 0.4, 8: 0.6}}

    assert len(all_of_them) == 8
    for momentum, rate in rates.items():
        found = {spec.world_size: spec for spec in all_of_them if spec.momentum == momentum}
        assert {workers: spec.batch_size for workers, spec in found.items()} == {1: 128, 2: 128, 4: 128, 8: 64}
        assert {workers: spec.steps_asked for workers, spec in found.items()} == {1: 2400, 2: 1200, 4: 600, 8: 600}
        assert {workers: spec.learning_rate for workers, spec in found.items()} == rate
        assert all(spec.steps_asked % spec.evaluate_every_steps == 0 for spec in found.values())


def test_our_own_server_stands_beside_that_of_the_source_at_the_same_points():
    def points(exchange):
        fields = ("world_size", "batch_size", "learning_rate", "momentum", "placement", "seed")
        return {
            tuple(getattr(spec, name) for name in fields)
            for spec in specs("cifar10_server")
            if spec.exchange.name == exchange
        }

    ours = points("parameter_server")
    assert len(ours) == 9
    assert ours < points("gather_server")


@pytest.mark.parametrize("name", ["cifar10_alexnet", "cifar10_server", "fashion_mnist_alexnet"])
def test_each_worker_has_a_node_of_its_own(name):
    """Section 6: although there are several GPUs on a node, only one is used."""
    assert {(spec.placement, spec.ranks_per_node) for spec in specs(name) if spec.world_size > 1} == {("spread", 1)}


def test_published_accuracy_per_second_is_highest_with_four_workers():
    """As the report says, section 6; and its 8 workers take the second place, which it does not say."""
    server = pd.read_csv(PUBLISHED / "server.csv").set_index("workers")

    per_s = server["test_accuracy"] / server["time_s"]
    assert per_s.sort_values(ascending=False).index.tolist() == [4, 8, 2, 1]
    assert (per_s[1] * 259.964, per_s[4] * 84.206) == pytest.approx((0.8118, 0.714))
    assert (server["time_s"][1] / server["time_s"]).round(2).to_dict() == {1: 1.0, 2: 1.88, 4: 3.09, 8: 2.81}


@pytest.mark.parametrize("name", ["cifar10_alexnet_small", "fashion_mnist_alexnet_small"])
def test_the_small_study_has_the_shape_of_the_large_one(name):
    small = [spec for spec in specs(name) if spec.seed == 0]
    axes = {axis: {getattr(spec, axis) for spec in small} for axis in ("world_size", "batch_size", "learning_rate")}

    assert len(small) == len(set(map(str, small))) == 24
    assert {name: len(values) for name, values in axes.items()} == {
        "world_size": 2,
        "batch_size": 3,
        "learning_rate": 4,
    }
    assert {spec.dataset.options["train_samples"] for spec in small} == {spec.samples_asked for spec in small}
    large = specs(name.removesuffix("_small"))[0]
    assert all(getattr(spec, field) == getattr(large, field) for spec in small for field in SAME)
    assert {(spec.model, spec.weight_decay) for spec in small} == {(large.model, large.weight_decay)}
    assert all(spec.dataset.name == large.dataset.name for spec in small)


def test_a_run_whose_data_cannot_be_had_says_how_to_get_them(tmp_path):
    project = Sandbox.make(tmp_path / "project")
    study = (STUDIES / "cifar10_alexnet_small.yaml").read_text()
    for kind in ("tables", "figures"):
        study = study.replace(f"\n{kind}: [", f"\n{kind}: [] # [")
    (project.root / "config" / "studies" / "cifar10_alexnet_small.yaml").write_text(study)
    (project.root / "config" / "config.yaml").write_text("studies: []\ndata: {cifar10: no_such.tar.gz}\n")

    done = project.call("ddp-hpc", "run", "cifar10_alexnet_small")

    assert done.returncode == 1
    assert "72 not yet run" in done.stderr
    assert "cannot bring no_such.tar.gz here" in done.stderr
    assert "`ddp-hpc data cifar10 --from PATH`" in done.stderr
