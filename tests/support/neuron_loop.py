"""The published neuron as a plain NumPy loop, for several seeds at once: nothing of the product's is in it."""

import numpy as np

RATE = 0.5


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def train(points, start, order, *, published, period=0, bias=False):
    """Return the loss of every step and rank before the update, seeds x steps x ranks.

    Args:
        points: seeds x points; the target of one is 1 from 0.5 on.
        start: weights, seeds x ranks.
        order: number of the point that a rank takes in a step, seeds x steps x ranks.
        published: record x where the target is 0, as the source's script does, not the absolute error.
        period: 0: gradients are averaged; else weights, after so many steps.
        bias: whether there is one; it starts at 0.
    """
    x = np.take_along_axis(points, order.reshape(len(points), -1), axis=1).reshape(order.shape)
    y = (x >= 0.5).astype(float)
    w, b = start.astype(float), np.zeros(start.shape)
    losses = np.empty(order.shape)
    for step in range(order.shape[1]):
        x_k, y_k = x[:, step], y[:, step]
        s = sigmoid(w * x_k + b)
        losses[:, step] = np.where(y_k == 1, 1 - s, x_k if published else s)
        slope = s * (1 - s) * np.where(y_k == 1, -1, 1)
        changes = [slope * x_k, slope * bias]
        if period == 0:
            changes = [change.mean(axis=1, keepdims=True) for change in changes]
        w, b = w - RATE * changes[0], b - RATE * changes[1]
        if period and (step + 1) % period == 0:
            w, b = (np.broadcast_to(part.mean(axis=1, keepdims=True), part.shape) for part in (w, b))
    return losses


def partitioned(seeds, points, steps, ranks):
    """Return the order in which each rank cycles its own part of the points."""
    own = np.arange(points).reshape(ranks, -1)
    return np.broadcast_to(own[:, np.arange(steps) % own.shape[1]].T, (seeds, steps, ranks))
