"""A decoder-only transformer, layer normalisation first, that predicts each next token from those before it."""

from typing import cast

from torch import Tensor, nn

from ddp_hpc.config.catalog import Fraction, PositiveInt

INPUT_SHAPE = (None,)
TOKENS = True

DEVIATION = 0.02  # of the embeddings at the start


class Transformer(nn.Module):
    """Token and position embeddings, layers of causal self-attention and a perceptron, a linear map to the logits."""

    def __init__(
        self, context: int, vocabulary: int, layers: int, width: int, heads: int, *, tied: bool, dropout: float
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        # one after another: torch's own stack of layers starts them all from the same weights
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocabulary, bias=False)
        for embedding in (self.tokens, self.positions, self.logits):
            nn.init.normal_(embedding.weight, std=DEVIATION)
        if tied:
            self.logits.weight = self.tokens.weight
        self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(context).isinf(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, samples x tokens x vocabulary, for samples x tokens of at most the context (int64)."""
        length = tokens.shape[1]
        later = cast(Tensor, self.later)[:length, :length]  # True: not to be looked at
        x = self.tokens(tokens) + self.positions.weight[:length]
        for layer in self.layers:
            x = layer(x, later, is_causal=True)
        return cast(Tensor, self.logits(self.norm(x)))


def build(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    layers: PositiveInt = 4,
    width: PositiveInt = 256,
    heads: PositiveInt = 4,
    tied: bool = True,
    dropout: Fraction = 0.0,
) -> nn.Module:
    """Return the network; its perceptrons are four times as wide as it is.

    With the bytes of `data/text.py` and `data/markov_text.py`, a context of 256 tokens, 24 layers, width 1024 and 16
    heads it has 302,835,712 parameters, the size of the language model of the post on the ring allreduce (A. Gibiansky,
    Baidu, 2017), whose own network is not published; a context of 32, 4 layers, width 256 make 3,233,280.

    Args:
        input_shape: tokens of a sample, the context.
        outputs: tokens that there are, the vocabulary.
        layers: of attention and perceptron.
        width: numbers by which a token is represented; a multiple of `heads`.
        heads: of the attention.
        tied: whether the embedding of the tokens is the last layer's matrix too.
        dropout: share of the numbers set to 0 after each attention and in each perceptron; each rank draws its own.

    Raises:
        ValueError: samples are no rows of tokens, or `width` is no multiple of `heads`.

    Source: A. Radford et al., Language Models are Unsupervised Multitask Learners (2019), for the layout.
    """
    if len(input_shape) != 1:
        raise ValueError(f"model transformer takes rows of tokens; given samples of shape {input_shape}")
    if width % heads:
        raise ValueError(f"model transformer: width={width} with heads={heads}, expected: multiples of {heads}")
    return Transformer(input_shape[0], outputs, layers, width, heads, tied=tied, dropout=dropout)
