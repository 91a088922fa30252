"""Training the published neuron against a plain NumPy loop over the same points in the same order."""

from pathlib import Path

import numpy as np
import pytest
import torch
from neuron_loop import partitioned, train

from ddp_hpc.config import spec
from ddp_hpc.data import step_function
from ddp_hpc.execution import run_record
from ddp_hpc.training import components, placement, sampler
from ddp_hpc.training import trainer as training

STEPS, POINTS, SEED = 300, 50, 7
NEURON = {
    "batch_size": 1,
    "learning_rate": 0.5,
    "dtype": "float64",
    "budget": {"steps": STEPS},
    "seed": SEED,
    "device": "cpu",
    "threads_per_rank": 1,
    "dataset": {"name": "step_function", "samples": POINTS, "seed": None},
}
WAYS = {
    "gradients": {},
    "without the slip": {"model": "neuron"},
    "shuffled": {"sampling": "global"},
    "bias": {"model": {"name": "neuron", "bias": True, "loss": "published"}},
    "weights": {"exchange": {"name": "weight_average", "period": 1}},
    "weights at times": {"exchange": {"name": "weight_average", "period": 10, "different_starts": True}},
    "bias at times": {"exchange": {"name": "weight_average", "period": 7}, "model": {"name": "neuron", "bias": True}},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_loss_of_every_rank_is_that_of_a_plain_loop(comm, way):
    fields = {"exchange": "mpi_allreduce", "model": {"name": "neuron", "loss": "published"}, "sampling": "partitioned"}
    given = spec.load(NEURON | fields | {"world_size": comm.size} | WAYS[way])
    place = placement.survey(given, comm)
    start = components.assemble(given, comm, Path("unused"), torch.device("cpu")).replica.weights[0].item()
    result = training.Trainer(given, comm, place, Path("unused")).run()
    parts = run_record.gather(result, place, {"import_s": 0.0}, comm)
    starts = np.array([comm.allgather(start)])

    if comm.rank == 0:
        if given.sampling == "partitioned":
            order = partitioned(1, POINTS, STEPS, comm.size)
        else:
            epochs = [sampler.permutation(POINTS, SEED, n) for n in range(STEPS * comm.size // POINTS + 1)]
            order = np.concatenate(epochs)[: STEPS * comm.size].reshape(1, STEPS, comm.size)
        options = given.exchange.options
        expected = train(
            step_function.build(Path("unused"), samples=POINTS, seed=SEED).train.inputs.numpy().T,
            starts,
            order,
            published=given.model.options.get("loss") == "published",
            bias=given.model.options.get("bias", False),
            period=options.get("period", 1) if given.exchange.name == "weight_average" else 0,
        )[0]
        losses = np.stack([part.losses for part in parts], axis=1)[-STEPS:]
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-12)
        assert len(set(starts[0])) == (comm.size if options.get("different_starts") else 1)
        assert np.ptp(expected, axis=1).max() > 0.1  # ranks see other points: a mix-up would show
