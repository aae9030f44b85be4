"""Bytes of activations: the tensors that forward and backward passes keep on the device in addition
to the training state, for each rank and micro batch.

The tensors that torch's autograd saves in each part of a block were counted in the code of
transformers, operation by operation (`benchmarks/memory_accuracy`). Each term is the number of
bytes of one token in one block. `w` is the bytes of an element, h the hidden size, q and k the
widths of queries and of keys, f the intermediate size.

norm        layer norm: its input and its output, w(h + h), and mean and deviation
            RMS norm: input in fp32, normalised input, output; in 16 bits (4 + 2 + 2) h
attention   rotated queries and keys, values and the result, w(2q + 2k), and the logarithm of the
            softmax's sum, 4 bytes for each head. "eager" also keeps its probabilities, one for
            each head and position of the sequence. If GPUs have no flash kernel for the dtype,
            keys and values are saved repeated, with the width of queries
MLP         gated: gate, activated gate, up and their product, 4wf; not gated: 2wf for GELU, wf for
            ReLU, 5wf for GELU as GPT-2 computes it
experts     the bytes of an MLP for each expert that a token uses, and its input and output

Worked example, Llama 3 8B in bf16 (h = q = 4096, k = 1024, f = 14336): norms 2 x 8 x 4096 = 65,536,
attention 2 x 10,240 + 4 x 32 = 20,608, MLP 4 x 2 x 14,336 = 114,688, and 8 for the norms' scales:
200,840 bytes a token and block, 6.6 GB for one sequence of 1024 in 32 blocks.

If several ranks compute a sequence together, each has the tokens of its part of the sequence. In
the attention it has all tokens for its part of the heads, which is the same number of bytes. The
result of the attention is sent back as another tensor, so both tensors are saved. Keys and values
that cannot be divided by the number of ranks exist once for each rank that needs them.

With activation checkpointing a block keeps only its input, w h; one block at a time has the other
tensors. A tensor-parallel rank has its part of the columns of attention and MLP; norms are whole on
each rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd

from zerotools.core.loss_chunk_sizes import LossSize
from zerotools.core.training_memory_layout import ITEM_BYTES
from zerotools.ops.estimate.model_families import HEAD, LAYER, RMS_FP32, Architecture
from zerotools.ops.estimate.state_memory import loss_bytes

_FULL = 4
_IDS = 3 * 8
"""The bytes of the id, the target and the position of one token."""
_SAVED_BY_ACTIVATION = {"relu": 0, "gelu_new": 4, "gelu_fast": 4}
"""The number of tensors of the intermediate width that each activation function saves. Functions
that are not listed save 1, because torch computes them in one operation.
"""
EAGER, SHARED, REPEATED = "eager", "sdpa", "sdpa with repeated keys"


def attention_on_gpus(precision: str) -> str:
    """Return the attention kernel that a model is assumed to use on GPUs in `precision`: a flash
    kernel for bf16, else one that needs repeated keys and values."""
    return SHARED if precision == "bf16" else REPEATED


@dataclass(frozen=True)
class MicroBatch:
    """The input that one rank processes at a time: `batch` sequences of `sequence` tokens, computed
    in `precision`.

    Attributes:
        attention: "eager" or one of torch's kernels.
        chunked_loss: "auto", "on" or "off", as `train.chunked_loss` of the job file.
        sequence_ranks: the number of ranks that each sequence is divided among.
        tensor_ranks: the number of ranks that divide each layer.
        per_example: the number of sequences in one training example: 2 for a pair of answers.
    """

    batch: int
    sequence: int
    precision: str = "bf16"
    checkpointing: bool = False
    attention: str = SHARED
    chunked_loss: str = "auto"
    sequence_ranks: int = 1
    tensor_ranks: int = 1
    per_example: int = 1

    @property
    def examples(self) -> int:
        """The number of training examples in the micro batch."""
        return max(1, self.batch // self.per_example)

    @property
    def stretch(self) -> int:
        """The number of tokens of one sequence that are on one rank."""
        return ceil(self.sequence / self.sequence_ranks)

    @property
    def tokens(self) -> int:
        """The number of tokens of the micro batch that are on one rank."""
        return self.batch * self.stretch

    @property
    def width(self) -> int:
        """The size of one element in bytes."""
        return ITEM_BYTES[self.precision]


@dataclass(frozen=True)
class Activations:
    """The memory of activations for one micro batch, in bytes.

    Attributes:
        kept: the tensors that the forward pass saves for the backward pass.
        block: the additional memory of one block in its backward pass.
        loss: the largest additional memory while the loss is computed.
        last: the memory of activations at the end of the backward pass, when only one block is left
            and the gradients of all weights exist.
    """

    kept: int
    block: int
    loss: int
    last: int

    @property
    def most(self) -> int:
        """The peak: `kept`, plus the loss or the first block of the backward pass, whichever is
        larger."""
        return self.kept + max(self.loss, self.block)


def activations_of(model: Architecture, micro: MicroBatch) -> Activations:
    """Return the bytes of the activations of `model` for one micro batch."""
    tokens, width = micro.tokens, micro.width
    one = tokens * _block(model, micro)
    backward = tokens * _backward_bytes_per_token(model, micro) + _expert_gradient(model, micro)
    mask = 0
    if micro.attention == EAGER:  # of whole sequences
        mask = micro.width * micro.sequence * micro.sequence_ranks
    outside = tokens * (_last_norm(model, micro) + _IDS + mask) + _rotary(model, micro)
    size = LossSize(tokens, model.vocabulary, model.hidden, micro.chunked_loss)
    loss = loss_bytes(size, micro.precision)
    if micro.checkpointing:
        inputs = model.layers * tokens * width * model.hidden
        return Activations(inputs + outside, one + backward, loss, one + backward)
    return Activations(model.layers * one + outside, backward, loss, one + backward)


def _block(model: Architecture, micro: MicroBatch) -> int:
    """Return the bytes of one token that a block saves for the backward pass."""
    mlp = _experts(model, micro) if model.experts else _mlp(model, micro)
    return _norms(model, micro) + (_attention(model, micro) + mlp) // micro.tensor_ranks


def _norms(model: Architecture, micro: MicroBatch) -> int:
    width, hidden = micro.width, model.hidden
    family = model.family
    count = family.parallel_norms or 2
    if family.norm == LAYER:
        inputs = 1 if family.parallel_norms else 2
        return width * hidden * (inputs + count) + 2 * _FULL * count
    return count * (_rms(model, micro) * hidden + _FULL)


def _rms(model: Architecture, micro: MicroBatch) -> int:
    """Return the bytes per element that are saved for an RMS norm. Its output, which the next layer
    saves, is included."""
    if micro.width == _FULL:
        return 3 * _FULL
    scaled = _FULL if model.family.norm == RMS_FP32 else micro.width
    return _FULL + scaled + micro.width


def _attention(model: Architecture, micro: MicroBatch) -> int:
    width, family = micro.width, model.family
    ranks = micro.sequence_ranks
    shared = gcd(model.kv_heads // micro.tensor_ranks, ranks)
    queries, keys = model.queries, model.keys * (ranks // shared)
    elements = 2 * queries + 2 * keys
    if micro.attention == EAGER:
        found = width * elements + _eager(model, micro)
    else:
        if "qkv" in family.joined and family.is_rotary and ranks == 1:
            elements += queries + keys  # values are a view of the joined product, which stays whole
        if family.cat_rotary or ranks > 1:
            elements += queries  # the result has another order, and is copied
        if micro.attention == REPEATED:
            elements += 2 * max(0, queries - keys)
        found = width * elements + _FULL * model.heads
    if family.qk_norm is not None:
        found += (_rms(model, micro) - micro.width) * (queries + model.keys)
        normed = model.heads + model.kv_heads if family.qk_norm == HEAD else 2
        found += _FULL * normed
    return found


def _eager(model: Architecture, micro: MicroBatch) -> int:
    """Return the bytes of one token that only "eager" attention saves: the probabilities, in fp32
    and in the dtype of the model, and the copies of keys and values for each head of queries."""
    scores = model.heads * micro.sequence
    if model.model_type == "gpt2" and micro.width != _FULL:
        return scores * micro.width  # it takes the softmax in the type of the scores
    cast = 0 if micro.width == _FULL else micro.width
    repeated = micro.width * 2 * (model.queries - model.keys) if model.kv_heads < model.heads else 0
    return scores * (_FULL + cast) + repeated


def _mlp(model: Architecture, micro: MicroBatch) -> int:
    saved = _SAVED_BY_ACTIVATION.get(model.activation, 1)
    tensors = saved + (3 if model.family.is_gated else 1)
    return micro.width * tensors * model.intermediate


def _experts(model: Architecture, micro: MicroBatch) -> int:
    one = 2 * model.hidden + 4 * model.intermediate
    router = 2 * _FULL * model.experts + (_FULL + 2 * 8) * model.experts_per_token
    return model.experts_per_token * micro.width * one + router


def _backward_bytes_per_token(model: Architecture, micro: MicroBatch) -> int:
    """Return the bytes of one token that the backward pass of a block needs in addition to saved
    tensors.

    They are the gradient of the hidden states plus the largest of three sizes: the gradient of the
    MLP's product, the temporary probabilities of "eager" attention, and a norm computed in fp32.
    """
    wide = model.intermediate * (model.experts_per_token or 1)
    if model.activation == "relu":
        wide *= 2  # it has saved its output alone, and the gradient of its input is another tensor
    norm = 0 if micro.width == _FULL or model.family.norm == LAYER else 2 * _FULL * model.hidden
    scores = 0
    if micro.attention == EAGER:
        element = micro.width if model.model_type == "gpt2" else _FULL
        scores = 3 * element * model.heads * micro.sequence // 2
    cut = max(micro.width * wide, scores) // micro.tensor_ranks
    return micro.width * model.hidden + max(cut, norm)


def _expert_gradient(model: Architecture, micro: MicroBatch) -> int:
    """Return the bytes of one expert's gradient, which is padded with zeros to the size of all
    experts."""
    return micro.width * model.experts * 2 * model.intermediate * model.hidden


def _last_norm(model: Architecture, micro: MicroBatch) -> int:
    """Return the bytes of one token for the norm before the head, including the last
    hidden states."""
    if model.family.norm == LAYER:
        return 2 * micro.width * model.hidden + 2 * _FULL
    return _rms(model, micro) * model.hidden + _FULL


def _rotary(model: Architecture, micro: MicroBatch) -> int:
    """Return the bytes of the cosines and sines of all positions, which all blocks share."""
    return 2 * micro.width * micro.stretch * model.head_dim if model.family.is_rotary else 0
