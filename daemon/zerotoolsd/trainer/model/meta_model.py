"""Makes the model of a Hugging Face config on the meta device: shapes without memory."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers import __version__ as transformers_version
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.jobs.jobfile_tables.lora import LoraSpec
from zerotools.jobs.jobfile_tables.model import ModelSpec
from zerotoolsd.trainer.model.add_lora_adapters import add_adapters, refuse_tied
from zerotoolsd.trainer.model.keep_fp32 import ALL_KEPT, kept_in_fp32
from zerotoolsd.trainer.model.nf4_linear import pack_frozen, packed_linears

CONFIG = "config.json"
OLDEST_TRANSFORMERS = (5, 1)
NO_ADAPTERS = LoraSpec()
LONGEST_REASON = 400
SPECIAL_FLOAT = "__float__"


@dataclass(frozen=True)
class MetaModel:
    """A language model without weights: a causal model, or an encoder-decoder.

    `blocks` are the names of the modules that are gathered one at a time (the decoder layers).
    `aliases` maps each other name of a tied parameter to its first name. `plain` is the model
    without adapters.
    """

    model: Any
    blocks: tuple[str, ...]
    aliases: Mapping[str, str]
    plain: Any

    @property
    def config(self) -> Any:
        """The Hugging Face config of the model."""
        return self.model.config

    def parameter_count(self) -> tuple[int, int]:
        """Return (trainable, frozen): the numbers of elements of the parameters.

        Tied parameters count once.
        """
        counts = [0, 0]
        for parameter in self.model.parameters():
            counts[not parameter.requires_grad] += parameter.numel()
        counts[1] += sum(layer.numel for _, layer in packed_linears(self.model))
        return counts[0], counts[1]


def read_config(model: ModelSpec) -> Any:
    """Read the Hugging Face config that the job table `[model]` names, and return it.

    Raises:
        BadRequest: the config cannot be read, or has an unknown model_type or wrong values; or
            transformers is too old.
    """
    # Before 5.0 a model's initialisation silently left out norms and buffers; 5.0 itself reports
    # its loading differently from all others.
    if tuple(map(int, transformers_version.split(".")[:2])) < OLDEST_TRANSFORMERS:
        raise BadRequest(
            f"{sys.executable} has transformers {transformers_version}, but training needs "
            f"{'.'.join(map(str, OLDEST_TRANSFORMERS))} or later; upgrade transformers there"
        )
    if model.path is not None:
        source, tree = _load(Path(model.path) / CONFIG)
    elif isinstance(model.config, str):
        source, tree = _load(Path(model.config))
    else:
        source, tree = "model.config", dict(model.config or {})
    name = tree.get("model_type")
    if not isinstance(name, str):
        raise BadRequest(
            f'{source} has no model_type; add the type of the model, for example "llama"'
        )
    if name not in CONFIG_MAPPING:
        code = (
            "; the code that comes with the model (auto_map) is not run: use a copy with an "
            "architecture of transformers"
            if "auto_map" in tree
            else ""
        )
        what = f"{source}: transformers does not know model_type {name!r}{code}"
        raise BadRequest(what)
    kind = CONFIG_MAPPING[name]
    _refuse_misspelt_keys(source, kind, tree)
    try:
        return kind.from_dict(_with_floats(tree))
    except Exception as error:  # whatever a config class of any model raises over its values
        raise BadRequest(f"{source} is not a config of a {name} model: {_reason(error)}") from None


def make_meta_model(config: Any, lora: LoraSpec = NO_ADAPTERS) -> MetaModel:
    """Return the language model of `config` on the meta device, in fp32, with the adapters of
    `lora`.

    Raises:
        BadRequest: values of the config contradict each other.
        Unsupported: the model is not a language model, or has scalar parameters.
    """
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model = kind.from_config(config)
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise BadRequest(f"the model cannot be built: {_reason(error)}") from None
        what = "encoder-decoder" if config.is_encoder_decoder else "causal"
        raise Unsupported(
            f"model_type {config.model_type!r} has no {what} language model in transformers"
        ) from None
    except Exception as error:  # whatever a model of any kind raises over its config
        raise BadRequest(f"the model cannot be built: {_reason(error)}") from None
    model.float()
    model.tie_weights()  # the first releases of transformers 5 do not tie on the meta device
    if not config.architectures:
        config.architectures = [type(model).__name__]
    plain = model
    if lora.rank is not None:
        plain = copy.deepcopy(model)
        add_adapters(model, lora)
    if lora.packs_frozen:
        kept = kept_in_fp32(model, ALL_KEPT)
        pack_frozen(model, double_quant=lora.double_quant, kept=kept)
    aliases = _aliases(model)
    refuse_tied(aliases)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise Unsupported(f"parameter {name} is a scalar, which cannot be sharded")
    return MetaModel(model, tuple(_blocks(model, aliases)), aliases, plain)


def check_data_fits(config: Any, vocabulary: int, sequence_length: int | None) -> None:
    """Check that the model has an embedding for each id below `vocabulary`, and enough positions.

    `sequence_length` is the length of the sequences; None if it is not checked.

    Raises:
        BadRequest: the model has too few embeddings or positions.
        Unsupported: the model is not a language model.
    """
    text = config.get_text_config()
    if not isinstance(getattr(text, "vocab_size", None), int):
        raise Unsupported(f"model_type {config.model_type!r} is not a language model")
    if text.vocab_size < vocabulary:
        raise BadRequest(
            f"the data needs {vocabulary} token ids, but the model's vocab_size is "
            f"{text.vocab_size}: raise vocab_size, or use the tokenizer of the model"
        )
    if sequence_length is None:
        return
    positions = getattr(text, "max_position_embeddings", None)
    if isinstance(positions, int) and 0 < positions < sequence_length:
        raise BadRequest(
            f"data.sequence_length is {sequence_length}, but the model's max_position_embeddings "
            f"is {positions}: lower data.sequence_length, or raise max_position_embeddings"
        )


def checkpoint_activations(model: Any) -> None:
    """Make the backward pass compute the blocks of `model` again, instead of keeping their
    activations.

    Raises:
        Unsupported: transformers does not support this for the model.
    """
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise Unsupported(
            "train.activation_checkpointing: transformers does not support it for "
            f"{type(model).__name__}; set it to false"
        )
    # The older name warns if the newer one exists.
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})


def _refuse_misspelt_keys(source: str, kind: Any, tree: Mapping[str, Any]) -> None:
    # A config class keeps any key. An unknown one may be of an older release; one that is similar
    # to a known key is a typing error that would change the model.
    known = {key for key in vars(kind()) if not key.startswith("_")}
    for key in tree:
        close = get_close_matches(key, known - set(tree), n=1, cutoff=0.85)
        if key not in known and close and not hasattr(kind, key):
            raise BadRequest(f"{source} has the unknown key {key!r}: did you mean {close[0]!r}?")


def _load(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        tree = json.loads(path.read_bytes())
    except OSError as error:
        raise BadRequest(f"model config {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadRequest(f"model config {path} is not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise BadRequest(f"model config {path} is not a JSON object")
    return str(path), tree


def _with_floats(tree: Any) -> Any:
    """Convert the objects that transformers writes for infinity into floats.

    JSON has no infinity.
    """
    if isinstance(tree, dict):
        if tree.keys() == {SPECIAL_FLOAT}:
            return float(tree[SPECIAL_FLOAT])
        return {key: _with_floats(value) for key, value in tree.items()}
    return [_with_floats(value) for value in tree] if isinstance(tree, list) else tree


def _aliases(model: nn.Module) -> dict[str, str]:
    canonical: dict[nn.Parameter, str] = {}
    aliases: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = canonical.setdefault(parameter, name)
        if first != name:
            aliases[name] = first
    return aliases


def _blocks(model: Any, aliases: Mapping[str, str]) -> Iterator[str]:
    classes = set(getattr(model, "_no_split_modules", None) or ())
    tied = set(aliases) | set(aliases.values())
    outer: str | None = None
    for name, module in model.named_modules():
        if outer is not None and name.startswith(outer):
            continue
        if type(module).__name__ not in classes:
            continue
        # A parameter that is shared between two groups would be gathered and freed twice.
        if any(f"{name}.{inner}" in tied for inner, _ in module.named_parameters()):
            continue
        outer = f"{name}."
        yield name


def _reason(error: Exception) -> str:
    """Return the message of `error` as one line, cut to LONGEST_REASON characters.

    All lines are used, because the first line may be only a heading ("Class validation error for
    validator ...:").
    """
    text = " ".join(str(error).split())
    if len(text) > LONGEST_REASON:
        text = f"{text[:LONGEST_REASON]}..."
    return text or type(error).__name__
