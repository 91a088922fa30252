"""Text of a Markov chain whose entropy is known exactly: the loss below which no language model can come.

A symbol follows from the `order` symbols before it and from chance: x = g(those before) + e modulo the alphabet, where
g is a table of random symbols and e = 0, 1, 2, ... has probabilities in the ratio 1, 1/4, 1/9, ... So all that is not
known of the next symbol is e: the entropy rate is that of e, whatever g is (`floor`), and no guess is right more often
than e = 0 occurs.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddp_hpc.config.catalog import NotNegativeInt, PositiveInt
from ddp_hpc.data._tasks import Dataset, next_tokens

SHAPE = (None,)
TASK = "next_token"
OUTPUTS = 256
TOKENS = True

TRAIN_SAMPLES = "samples"
TEST_SAMPLES = 256
MOST_STATES = 1 << 22  # entries of the table


def build(
    folder: Path,
    *,
    samples: PositiveInt = 8192,
    context: PositiveInt = 64,
    alphabet: PositiveInt = 64,
    order: PositiveInt = 1,
    seed: NotNegativeInt = 0,
) -> Dataset:
    """Return sequences of `context` tokens, each with the token that follows as its target; tokens are symbols, 0, 1...

    Args:
        folder: not needed.
        samples: sequences to train on; each begins with `order` symbols drawn evenly.
        context: tokens of a sequence.
        alphabet: symbols that occur, of the 256 that a model of bytes knows.
        order: symbols on which the next one depends.
        seed: of the table and the text. The seed of a run decides only their order and the weights.

    Raises:
        ValueError: an alphabet beyond 256, a table that is too large, or a context shorter than the order.
    """
    if not 2 <= alphabet <= OUTPUTS:
        raise ValueError(f"dataset markov_text: alphabet={alphabet}, expected: 2 to {OUTPUTS}")
    if alphabet**order > MOST_STATES:
        raise ValueError(
            f"dataset markov_text: order={order} with alphabet={alphabet} needs a table of {alphabet**order} symbols, "
            f"expected: {MOST_STATES}"
        )
    if context < order:
        raise ValueError(f"dataset markov_text: context={context} with order={order}, expected: {order} and more")
    draw = np.random.default_rng(seed)
    table = draw.integers(alphabet, size=alphabet**order)
    test, train = (_text(draw, table, count, context + 1, alphabet, order) for count in (TEST_SAMPLES, samples))
    return Dataset(train=next_tokens(train), test=next_tokens(test))


def chances(alphabet: int) -> NDArray[np.float64]:
    """Return the probabilities of e = 0, 1, ..., alphabet - 1."""
    weights = 1 / np.arange(1, alphabet + 1) ** 2
    return np.asarray(weights / weights.sum())


def floor(context: int, alphabet: int, order: int) -> float:
    """Return the least mean loss per token that is possible, in nats.

    It is the entropy of e for each target but the first `order` - 1, which are drawn evenly.
    """
    p, even = chances(alphabet), order - 1
    return float((even * np.log(alphabet) - (context - even) * (p * np.log(p)).sum()) / context)


def _text(
    draw: np.random.Generator, table: NDArray[np.int64], count: int, length: int, alphabet: int, order: int
) -> NDArray[np.int64]:
    """Return `count` sequences of `length` symbols."""
    text = np.empty((length, count), dtype=np.int64)
    text[:order] = draw.integers(alphabet, size=(order, count))
    state = np.zeros(count, dtype=np.int64)  # the last symbols as the digits of a number
    for symbol in text[:order]:
        state = state * alphabet + symbol
    ends = chances(alphabet).cumsum()[:-1]  # of the intervals of [0, 1) that stand for each e
    for place in range(order, length):
        text[place] = (table[state] + np.searchsorted(ends, draw.random(count), side="right")) % alphabet
        state = (state * alphabet + text[place]) % len(table)
    return np.ascontiguousarray(text.T)
