"""Weights that are kept make the model that was trained, and keeping them makes no other run."""

import factory
import pytest
import torch

import ddp_hpc
from ddp_hpc.config import catalog, spec
from ddp_hpc.config.study import StudyError
from ddp_hpc.models._replica import Replica
from ddp_hpc.training import weights
from ddp_hpc.workflow import plan

NORMED = """
from torch import nn

def build(input_shape, outputs, *, width: int = 5):
    first = nn.Linear(input_shape[0], width)
    return nn.Sequential(first, nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, outputs))
"""
SPEC = {"dataset": "digits", "model": {"name": "normed", "width": 7}, "exchange": "none", "world_size": 1}
REST = {"batch_size": 16, "learning_rate": 0.1, "budget": {"steps": 5}, "dtype": "float64"}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "normed.py").write_text(NORMED)
    catalog.use_project(tmp_path)
    yield tmp_path
    catalog.use_project(None)


def trained(spec: spec.RunSpec) -> Replica:
    model = catalog.load("model", "normed").build((64,), 10, **spec.model.options)
    replica = Replica(model, torch.device("cpu"), torch.float64)
    model.train()
    model(torch.rand(32, 64, dtype=torch.float64))  # moves the running means
    replica.weights.add_(torch.rand_like(replica.weights))
    return replica


def test_a_model_comes_back_with_weights_buffers_and_type_for_evaluation(project):
    of = spec.load(SPEC | REST)
    replica = trained(of)
    weights.save(project / "weights.safetensors", "a-run", of, replica.model, (64,))

    drawn = torch.random.get_rng_state()
    again = weights.load(project / "weights.safetensors")

    inputs = torch.rand(9, 64, dtype=torch.float64)
    assert torch.equal(again(inputs), replica.model.eval()(inputs))
    assert not again.training
    assert torch.equal(drawn, torch.random.get_rng_state()) is False  # by `inputs` alone:
    torch.random.set_rng_state(drawn)
    assert torch.equal(inputs, torch.rand(9, 64, dtype=torch.float64))


def test_a_model_that_has_changed_is_told_of(project):
    of = spec.load(SPEC | REST)
    weights.save(project / "weights.safetensors", "a-run", of, trained(of).model, (64,))
    (project / "models" / "normed.py").write_text(NORMED.replace("nn.Dropout(0.5)", "nn.ReLU()"))
    _forget(project)
    with pytest.warns(UserWarning, match=r"\./models/normed.py has changed since a-run"):
        weights.load(project / "weights.safetensors")
    (project / "models" / "normed.py").write_text(NORMED.replace("nn.Dropout(0.5), ", ""))
    _forget(project)
    refused = pytest.raises(weights.WeightsError, match="does not take the weights of a-run")
    with pytest.warns(match="has changed"), refused:
        weights.load(project / "weights.safetensors")
    (project / "weights.safetensors").write_bytes(b"none")
    with pytest.raises(weights.WeightsError, match="cannot be read"):
        weights.load(project / "weights.safetensors")


def _forget(project) -> None:
    """What a new process would see: nothing of the project has been imported or hashed."""
    from ddp_hpc.runs import identity

    identity.forget()
    catalog.use_project(None)
    catalog._make_importable(project / "elsewhere")
    catalog.use_project(project)


def test_keeping_weights_makes_no_other_run_and_repeats_none(tmp_path):
    without = factory.planned(tmp_path / "without")
    kept = factory.made_up(tmp_path / "kept", lambda spec: factory.constant(1.0), keep="weights")
    assert [one.run for one in kept.planned] == [one.run for one in without.planned]
    assert not kept.lacking
    first = kept.planned[0].run
    kept.store.run(first).weights.touch()
    (note,) = plan.weights_noted(kept).notes
    assert note.startswith(
        f"keep: {len(kept.planned) - 1} of {len(kept.planned)} runs are finished and have no weights"
    )
    assert plan.weights_noted(without).notes == ()


def test_what_was_planned_keeps_weights_if_its_study_says_so(tmp_path):
    for keep in ("weights", None):
        study_runs = factory.planned(tmp_path, keep=keep)
        plan.prepare(study_runs)
        assert {study_runs.store.run(one.run).plan.get("keep") for one in study_runs.planned} == {keep}


def test_a_run_without_weights_says_how_they_are_kept(tmp_path):
    (tmp_path / "a-run").mkdir()
    with pytest.raises(StudyError, match="ddp-hpc train a-run --again --keep weights"):
        ddp_hpc.load_model(tmp_path / "a-run")
