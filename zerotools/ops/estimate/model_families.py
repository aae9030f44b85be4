"""Compute a model's parameter shapes and layer sizes from its config.json.

For the architectures in `FAMILIES` all parts are known. The parameters are equal to those that
transformers makes (a test compares all of them), and `activation_memory` knows the tensors that
each part saves for the backward pass. For other architectures nothing is guessed.

Worked example, Llama with hidden size 4096, 32 heads of 128, 8 of them for keys and values, and an
intermediate size of 14336. A block has q 4096 x 4096, k and v 1024 x 4096, o 4096 x 4096, gate and
up 14336 x 4096, down 4096 x 14336 and two norms of 4096: 218,112,000 parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.io.huggingface.config_json import class_keys, full_config, ties_embeddings
from zerotools.ops.estimate.state_memory import Parameter

RMS, RMS_FP32, LAYER = "rms", "rms in fp32", "layer"
"""Norms: RMS norms with weights that multiply in the model's type or in fp32, and layer norms."""
HEAD, WHOLE = "head", "whole"
"""Norms of queries and keys: of each head, or of all heads together."""


@dataclass(frozen=True)
class Family:
    """The structure of a block in models of one `model_type` of transformers.

    Attributes:
        bias: the kinds of linear layers with a bias: "qkv", "o", "mlp" or "head".
        joined: the layers that are one matrix: "qkv" (queries, keys, values) or "mlp" (gate and
            up).
        cat_rotary: rotary embeddings are computed in two parts and concatenated, so the attention's
            output is copied once more.
        position_rows: the number of rows of the table of learned positions, minus the number of
            positions in the config; None if the model has no such table.
    """

    norm: str = RMS
    is_gated: bool = True
    bias: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()
    is_rotary: bool = True
    cat_rotary: bool = False
    qk_norm: str | None = None
    norms_after: bool = False
    parallel_norms: int | None = None
    """The norms of a block if attention and MLP read the same hidden states, else None."""
    position_rows: int | None = None
    even_heads: bool = False
    """True if the heads divide the hidden size evenly, and `head_dim` of the config is ignored."""
    has_experts: bool = False


MOST_LAYERS = 10_000
_OLD_BIAS = frozenset({"qkv", "o", "mlp"})
_LLAMA = Family()
FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "granite": _LLAMA,
    "smollm3": _LLAMA,
    "qwen2": Family(bias=frozenset({"qkv"})),
    "qwen3": Family(qk_norm=HEAD),
    "qwen3_moe": Family(qk_norm=HEAD, has_experts=True),
    "mixtral": Family(has_experts=True),
    "gemma": Family(norm=RMS_FP32),
    "olmo2": Family(norm=RMS_FP32, qk_norm=WHOLE, norms_after=True),
    "phi3": Family(joined=frozenset({"qkv", "mlp"}), cat_rotary=True),
    "stablelm": Family(norm=LAYER, cat_rotary=True, even_heads=True),
    "gpt2": Family(
        norm=LAYER,
        is_gated=False,
        bias=_OLD_BIAS,
        joined=frozenset({"qkv"}),
        is_rotary=False,
        position_rows=0,
        even_heads=True,
    ),
    "opt": Family(
        norm=LAYER,
        is_gated=False,
        bias=_OLD_BIAS,
        is_rotary=False,
        position_rows=2,
        even_heads=True,
    ),
    "gpt_neox": Family(
        norm=LAYER,
        is_gated=False,
        bias=_OLD_BIAS,
        joined=frozenset({"qkv"}),
        cat_rotary=True,
        parallel_norms=2,
        even_heads=True,
    ),
    "phi": Family(
        norm=LAYER,
        is_gated=False,
        bias=_OLD_BIAS | {"head"},
        cat_rotary=True,
        parallel_norms=1,
    ),
    "starcoder2": Family(norm=LAYER, is_gated=False, bias=_OLD_BIAS),
}


@dataclass(frozen=True)
class Architecture:
    """The layer sizes of a model that belongs to a known family.

    `hidden` is the width of hidden states. With experts, a token passes through `experts_per_token`
    of them, each `intermediate` wide. `experts` is 0 if every token passes through one MLP.
    """

    family: Family
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    positions: int
    is_tied: bool
    activation: str
    bias: frozenset[str] = frozenset()
    experts: int = 0
    experts_per_token: int = 0
    model_type: str = field(default="llama")

    @property
    def queries(self) -> int:
        """The width of the queries of one token: the number of elements in all heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """The width of the keys of one token, and of its values."""
        return self.kv_heads * self.head_dim

    def parameters(self) -> list[Parameter]:
        """Return all parameters of the model. Tied parameters appear once."""
        found = [Parameter(shape) for shape in self._outside()]
        shapes = list(self._block())
        for layer in range(self.layers):
            found += [
                Parameter(shape, block=str(layer), is_hidden=len(shape) == 2) for shape in shapes
            ]
        return found

    def _outside(self) -> Iterator[tuple[int, ...]]:
        family = self.family
        yield (self.vocabulary, self.hidden)
        if family.position_rows is not None:
            yield (self.positions + family.position_rows, self.hidden)
        yield from self._norm(self.hidden)
        if not self.is_tied:
            yield (self.vocabulary, self.hidden)
        if "head" in self.bias:
            yield (self.vocabulary,)

    def _block(self) -> Iterator[tuple[int, ...]]:
        for _ in range(self.family.parallel_norms or 2):
            yield from self._norm(self.hidden)
        yield from self._attention()
        yield from self._experts() if self.experts else self._mlp()

    def _norm(self, width: int) -> Iterator[tuple[int, ...]]:
        yield (width,)
        if self.family.norm == LAYER:
            yield (width,)

    def _attention(self) -> Iterator[tuple[int, ...]]:
        queries, keys, joined = self.queries, self.keys, self.family.joined
        rows = [queries + 2 * keys] if "qkv" in joined else [queries, keys, keys]
        for count in rows:
            yield from self._linear(count, self.hidden, "qkv")
        yield from self._linear(self.hidden, queries, "o")
        if self.family.qk_norm == HEAD:
            yield from ((self.head_dim,), (self.head_dim,))
        if self.family.qk_norm == WHOLE:
            yield from ((queries,), (keys,))

    def _mlp(self) -> Iterator[tuple[int, ...]]:
        width, joined = self.intermediate, self.family.joined
        rows = [width]
        if self.family.is_gated:
            rows = [2 * width] if "mlp" in joined else [width, width]
        for count in rows:
            yield from self._linear(count, self.hidden, "mlp")
        yield from self._linear(self.hidden, width, "mlp")

    def _experts(self) -> Iterator[tuple[int, ...]]:
        yield (self.experts, self.hidden)
        yield (self.experts, 2 * self.intermediate, self.hidden)
        yield (self.experts, self.hidden, self.intermediate)

    def _linear(self, rows: int, columns: int, name: str) -> Iterator[tuple[int, ...]]:
        # transformers' Conv1D of GPT-2 has rows and columns exchanged.
        yield (columns, rows) if self.model_type == "gpt2" else (rows, columns)
        if name in self.bias:
            yield (rows,)


def architecture_of(config: Mapping[str, Any], source: str) -> Architecture | None:
    """Return the architecture that transformers builds from a config. A missing key has the default
    of the config's class, and unknown keys are ignored. Return None for quantised weights, and if
    zerotools does not know all parts of this `model_type`.

    Raises:
        BadRequest: a size is missing, or is not a positive number. The message names `source`.
    """
    name = config.get("model_type")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if not isinstance(name, str) or family is None or config.get("quantization_config"):
        return None
    config = _known(config, name)
    if _is_special(config, family):
        return None
    sizes = _Sizes(config, source)
    hidden, heads = sizes("hidden_size"), sizes("num_attention_heads")
    experts = sizes("num_local_experts") if family.has_experts else 0
    layers = sizes("num_hidden_layers")
    if layers > MOST_LAYERS:
        raise BadRequest(
            f"{source}: has {layers} layers, but no model has more than {MOST_LAYERS}; correct it"
        )
    head_dim = 0 if family.even_heads else sizes.optional("head_dim")
    head_dim = head_dim or hidden // heads
    if head_dim < 1:
        raise BadRequest(
            f"{source}: hidden_size = {hidden} is less than the number of heads, {heads}; correct "
            "it"
        )
    return Architecture(
        family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=sizes.optional("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate=sizes.optional(*_WIDTHS) or sizes.optional("n_inner") or 4 * hidden,
        vocabulary=sizes("vocab_size"),
        positions=sizes.optional("max_position_embeddings"),
        is_tied=ties_embeddings(config),
        activation=_activation(config),
        bias=_bias(config, family),
        experts=experts,
        experts_per_token=sizes("num_experts_per_tok") if experts else 0,
        model_type=name,
    )


_WIDTHS = ("moe_intermediate_size", "intermediate_size", "ffn_dim")


def _known(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the keys of a config that its class declares, and `head_dim`, which models use even
    without a declaration."""
    known, found = class_keys(name), full_config(config)
    known |= {"model_type", "head_dim"}
    return {key: value for key, value in found.items() if key in known}


def _is_special(config: Mapping[str, Any], family: Family) -> bool:
    """Return whether the config changes the blocks in a way that `family` does not describe."""
    projected = config.get("word_embed_proj_dim")
    is_parallel = family.parallel_norms is not None
    return any(
        (
            config.get("mlp_only_layers"),
            config.get("decoder_sparse_step", 1) not in (None, 1),
            not config.get("do_layer_norm_before", True),
            projected is not None and projected != config.get("hidden_size"),
            config.get("qk_layernorm"),
            bool(config.get("use_parallel_residual", is_parallel)) is not is_parallel,
            config.get("add_cross_attention"),
        )
    )


def _activation(config: Mapping[str, Any]) -> str:
    for key in ("hidden_act", "activation_function"):
        if isinstance(config.get(key), str):
            return str(config[key])
    return ""


def _bias(config: Mapping[str, Any], family: Family) -> frozenset[str]:
    found = set(family.bias)
    if config.get("attention_bias") is False:
        found -= {"qkv", "o"}
    if config.get("attention_bias") is True and not family.bias:
        found |= {"qkv", "o"}
    if config.get("mlp_bias") is True:
        found.add("mlp")
    if config.get("use_qkv_bias") is True:
        found.add("qkv")
    if config.get("use_bias") is False or config.get("enable_bias") is False:
        found.clear()
    return frozenset(found)


class _Sizes:
    """Reads positive numbers from a config."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self._config, self._source = config, source

    def __call__(self, *names: str) -> int:
        found = self.optional(*names)
        if not found:
            raise BadRequest(
                f"{self._source}: has no {names[0]}, which a {self._config.get('model_type')} "
                "model needs; add it"
            )
        return found

    def optional(self, *names: str) -> int:
        for name in names:
            value = self._config.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**40:
                raise BadRequest(
                    f"{self._source}: {name} = {value!r} is not a positive number; correct it"
                )
            return value
        return 0
