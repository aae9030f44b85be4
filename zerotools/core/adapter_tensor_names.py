"""The tensors of a PEFT adapter inside a model, and the names under which PEFT saves them.

    base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight      in the model
    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight              as saved

Wrappers of the model (FSDP1, activation checkpointing, torch.compile, DDP) add words to the names.
A model into which adapters were injected has no `base_model.model.` at its front. Megatron-Bridge
has other words for the two matrices:

    decoder.layers.0.mlp.linear_fc2.adapter.linear_in.weight      lora_A of linear_fc2
    decoder.layers.0.mlp.linear_fc2.adapter.linear_out.weight     lora_B
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from zerotools.core.checkpoint import Key
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest, Unsupported

PREFIX = "base_model.model."
DEFAULT = "default"
A, B, EMBEDDING_A, EMBEDDING_B = "lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"
MAGNITUDE = "lora_magnitude_vector"
SAVED_WHOLE, TOKENS = "modules_to_save", "trainable_tokens_delta"
SAVED_EMBEDDINGS = ("embed_tokens", "lm_head")
"""Embedding layers. If one of them is in `target_modules`, PEFT saves the layer's own weights with
the adapter.
"""
_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
# The adapter's name is absent if a program saved the names of PEFT's files.
_LORA = (
    rf"(?P<stem>.+)\.((?P<half>{A}|{B})(\.(?P<adapter>[^.]+))?(?P<leaf>\.weight|\.bias)"
    rf"|(?P<part>{EMBEDDING_A}|{EMBEDDING_B}|{MAGNITUDE})(\.(?P<of>[^.]+))?(\.weight)?"
    r"|adapter\.(?P<bridge>linear_in|linear_out)(?P<end>\.weight))"
)
_WHOLE = rf"(?P<stem>.+)\.{SAVED_WHOLE}(\.(?P<adapter>[^.]+))?(?P<leaf>\..+)"
_TOKENS = rf"(?P<stem>.+\.token_adapter)\.{TOKENS}(\.(?P<adapter>[^.]+))?"
# A name without these words is of no adapter.
_MARKS = ("lora_", "adapter", SAVED_WHOLE)
_ORIGINALS = (".original_module.", ".trainable_tokens_original.")
_OF_BRIDGE = {"linear_in": A, "linear_out": B}
# The names under which layers with an adapter hold the original layer.
_INSIDE = ("base_layer", "token_adapter", "original_module", "to_wrap")
# Names of tensors of other kinds of adapters, and of rare forms of LoRA.
_OF_OTHER_KINDS = (
    r"ia3_l|hada_w\w+|lokr_w\w+|oft_[A-Za-z]+|boft_[A-Za-z]+|vera_lambda_\w+|vblora_\w+"
    r"|fourierft_spectrum|randlora_\w+|hra_u|bone_\w*|miss_\w*|shira_\w+|c3a_kernel|road_\w+"
    r"|ln_tuning_layers|waveft_\w+"
)
_OTHERS = (
    rf"\.({_OF_OTHER_KINDS}|lora_[A-Za-z]\w*)\."
    r"|(^|\.)(prompt_encoder|adaption_prompt|adaption_gate)[._]"
    r"|\.adapter\.(adapter_\w+\.|weight_magnitude)"
)
# Names that only PEFT gives to tensors of other kinds of adapters, in a model or a file of its own.
_NOT_LORA = (
    rf"(.+\.)?{re.escape(PREFIX)}.+\.({_OF_OTHER_KINDS}|lora_E)(\..*)?"
    rf"|.+\.token_adapter\.{TOKENS}(\..*)?|prompt_encoder\.{DEFAULT}\..+"
)
_WRAPPED = r"(?P<stem>.+)\.base_layer\.(weight|bias)"
_PROMPTS = "prompt_embeddings"


@dataclass(frozen=True, slots=True)
class AdapterTensor:
    """One tensor of a PEFT adapter.

    Attributes:
        module: the name that the changed layer has in the model without adapters.
        part: `lora_A`, ..., `modules_to_save` or `trainable_tokens_delta`.
        saved: the name of the tensor in PEFT's files.
        stem: the beginning of `saved`, which is the name of the changed layer in PEFT's files.
    """

    key: Key
    module: str
    part: str
    saved: str
    stem: str


def adapter_tensors(keys: Iterable[Key], adapter: str | None, path: object) -> list[AdapterTensor]:
    """Return the tensors of the adapter named `adapter`. If `adapter` is None, return the tensors
    of the only adapter, or of the adapter named `default`.

    Raises:
        BadRequest: no adapter exists, no adapter has this name, or `adapter` is None and several
            adapters exist but no `default`.
        Unsupported: the adapter is not a LoRA adapter.
    """
    keys = list(keys)
    found: dict[str, list[AdapterTensor]] = {}
    others = []
    for key in keys:
        parsed = _parsed(key)
        if parsed is not None:
            found.setdefault(parsed[0], []).append(parsed[1])
        elif re.search(_OTHERS, key.name):
            others.append(key.name)
    others = others or [*filter(None, [tensor_of_other_kind(keys)])]
    if others:
        raise Unsupported(
            f"{path} has {others[0]}, which is not part of a LoRA adapter, and zerotools reads "
            "only LoRA (also with DoRA, modules_to_save and trainable tokens); save the adapter "
            "with PEFT's save_pretrained"
        )
    lora = {name: each for name, each in found.items() if any(_is_lora(one) for one in each)}
    if not lora:
        raise BadRequest(
            f"{path} has no tensor of a LoRA adapter (such as ...lora_A.default.weight), so it "
            "has no adapter to export; leave --adapter-only out"
        )
    chosen = adapter or (DEFAULT if DEFAULT in lora else next(iter(lora)))
    if chosen not in lora or (adapter is None and len(lora) > 1 and DEFAULT not in lora):
        raise BadRequest(
            f"{path} has {count_text(len(lora), 'adapter')}: {', '.join(sorted(lora))}; choose "
            "one of them with --adapter-name"
        )
    return found[chosen]


def adapter_names(keys: Iterable[Key]) -> list[str]:
    """Return the names of the LoRA adapters among the tensors `keys`. An adapter without a name is
    `default`."""
    parsed = (_parsed(key) for key in keys)
    return list(dict.fromkeys(each[0] for each in parsed if each and _is_lora(each[1])))


def tensor_of_other_kind(keys: Iterable[Key]) -> str | None:
    """Return the name of a tensor that shows an adapter of PEFT, if none of the tensors `keys` is
    of a LoRA adapter; else None."""
    keys = list(keys)
    if adapter_names(keys):
        return None
    names = sorted({key.name for key in keys})
    if names == [_PROMPTS]:
        return _PROMPTS
    wrapped = {match["stem"] for name in names if (match := re.fullmatch(_WRAPPED, name))}
    return next((n for n in names if re.fullmatch(_NOT_LORA, n) or _is_inside(n, wrapped)), None)


def _is_inside(name: str, wrapped: Collection[str]) -> bool:
    """Return whether a tensor is in a layer of `wrapped`, but not in the original layer there."""
    words = name.split(".")
    stems = (".".join(words[:count]) for count in range(1, len(words)))
    return any(stem in wrapped and words[stem.count(".") + 1] != "base_layer" for stem in stems)


def is_adapter_checkpoint(keys: Iterable[Key]) -> bool:
    """Return whether the tensors `keys` are LoRA adapters without their base model.

    Besides adapters, only tensors that PEFT saves with them may be present: biases, and embeddings
    that have an adapter.
    """
    keys = list(keys)
    parsed = {key: _parsed(key) for key in keys}
    modules = {each[1].module for each in parsed.values() if each and _is_lora(each[1])}
    modules = {each for each in modules if not each.endswith(SAVED_EMBEDDINGS)} or modules
    others = (
        module_of(full_name(key.name))
        for key in keys
        if parsed[key] is None and not key.name.endswith(".bias")
    )
    return bool(modules) and not any(
        name.rpartition(".")[0] in modules or name in modules for name in others
    )


def adapter_of(key: Key) -> str | None:
    """Return the name of the adapter that a tensor belongs to, or None if it belongs to no
    adapter."""
    parsed = _parsed(key)
    return None if parsed is None else parsed[0]


def adapter_tensor(key: Key) -> AdapterTensor | None:
    """Return the adapter tensor that `key` identifies, or None if `key` belongs to no adapter."""
    parsed = _parsed(key)
    return None if parsed is None else parsed[1]


def saved_whole_twice(aliases: Mapping[str, str], adapter: str) -> Iterator[AdapterTensor]:
    """Yield the tensors of tied modules that the adapter has as a whole, if they are `aliases` of
    other tensors of the adapter. PEFT saves each of them."""
    for alias, holder in aliases.items():
        parsed = _parsed(Key(alias, "param"))
        if parsed is not None and parsed[0] == adapter and parsed[1].part == SAVED_WHOLE:
            yield replace(parsed[1], key=Key(holder, "param"))


def _is_lora(each: AdapterTensor) -> bool:
    return each.part not in (SAVED_WHOLE, TOKENS)


def _parsed(key: Key) -> tuple[str, AdapterTensor] | None:
    if not any(mark in key.name for mark in _MARKS):
        return None
    name = full_name(key.name)
    if any(word in name for word in _ORIGINALS):
        return None
    if match := re.fullmatch(_LORA, name):
        part, stem = match["half"] or match["part"] or _OF_BRIDGE[match["bridge"]], match["stem"]
        adapter = match["adapter"] or match["of"] or DEFAULT
        saved = f"{stem}.{part}{match['leaf'] or match['end'] or ''}"
    elif match := re.fullmatch(_WHOLE, name):
        part, stem, adapter = SAVED_WHOLE, match["stem"], match["adapter"] or DEFAULT
        saved = f"{stem}{match['leaf']}"
    elif match := re.fullmatch(_TOKENS, name):
        part, stem, adapter = TOKENS, match["stem"], match["adapter"] or DEFAULT
        saved = f"{stem}.{TOKENS}"
    else:
        return None
    return adapter, AdapterTensor(key, module_of(stem), part, saved, stem)


def full_name(name: str) -> str:
    """Return the name that a tensor has in an unwrapped PEFT model. Words that wrappers add are
    removed, and `base_model.model.` is put in front.
    """
    words = [word for word in name.split(".") if word not in _WRAPPERS]
    plain = ".".join(words)
    at = plain.find(PREFIX)
    return plain[at:] if at >= 0 else PREFIX + plain


def names_in_model(weights: Iterable[str], trained: Iterable[str]) -> dict[str, str]:
    """Return, for each weight name that PEFT saved, the name of this weight in the model.

    `trained` are the names of the optimizer's parameters, which are names in the model. A weight is
    left out if its name in the model is already the name of a saved weight. Return an empty dict if
    two adapters were trained, because PEFT saves both under the same names.
    """
    own = {full_name(name): name for name in weights}
    taken, found = frozenset(own.values()), dict[str, str]()
    for name in trained:
        each = adapter_tensor(Key(name, "param"))
        if each is None or each.saved not in own or name in taken:
            continue
        if own[each.saved] in found:
            return {}
        found[own[each.saved]] = name
    return found


def state_without_weights(keys: Iterable[Key]) -> list[str]:
    """Return the names of LoRA tensors that have optimizer state but no weights in the checkpoint.
    The list is empty if the checkpoint has no weights at all.
    """
    keys = list(keys)
    weights = {full_name(key.name) for key in keys if key.role in ("param", "param16")}
    found: dict[str, None] = {}
    for key in keys:
        each = adapter_tensor(key) if key.role not in ("param", "param16", "buffer") else None
        if each is not None and weights.isdisjoint((each.saved, full_name(key.name))):
            found[key.name] = None
    return list(found) if weights else []


def module_of(stem: str) -> str:
    """Return the name that a layer has in the model without adapters."""
    words = stem.removeprefix(PREFIX).split(".")
    return ".".join(word for word in words if word not in _INSIDE)


def plain_name(name: str) -> str:
    """Return the name that a tensor has in the model without adapters.

    For a tensor of a module that the adapter replaces as a whole, return the name of the replaced
    tensor.
    """
    plain = module_of(full_name(name))
    match = re.fullmatch(_WHOLE, plain)
    return plain if match is None else match["stem"] + match["leaf"]


def is_replaced(name: str, saved: Collection[str]) -> bool:
    """Return whether the adapter has a replacement for a tensor, so that merging the adapter into
    the model removes the tensor.

    The replaced tensors are embeddings with rows that the adapter trained for single tokens, and
    all tensors of the modules in `saved`.
    """
    if ".trainable_tokens_original." in name:
        return True
    stem, found, _ = name.partition(".original_module.")
    return bool(found) and stem in saved


def trained_biases(
    keys: Iterable[Key], which: str, modules: Iterable[str]
) -> Iterator[AdapterTensor]:
    """Yield the biases that were trained with an adapter. `which` is the value of `bias` in the
    adapter's config: `none`, `all`, or `lora_only` (only the biases of `modules`).
    """
    adapted = set(modules)
    for key in keys:
        name = full_name(key.name)
        stem, dot, leaf = name.rpartition(".")
        if which == "none" or not dot or leaf != "bias" or _parsed(key) is not None:
            continue
        if not any(word in name for word in _ORIGINALS) and (
            which == "all" or module_of(stem) in adapted
        ):
            yield AdapterTensor(key, module_of(stem), "bias", name, stem)
