"""Read and check PEFT's adapter_config.json, which has the rank, scale and modules of an adapter.

The tensors show the rank, but not the scale of the product (`lora_alpha`), so the config is needed.
It comes from the run, from the record of a job, or from the user.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from zerotools.core.adapter_tensor_names import (
    DEFAULT,
    EMBEDDING_A,
    EMBEDDING_B,
    MAGNITUDE,
    SAVED_WHOLE,
    TOKENS,
    A,
    AdapterTensor,
    B,
)
from zerotools.core.checkpoint import Checkpoint, Tensor
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.linear_time_regex import NamePatterns
from zerotools.formats.megatron.bridge_config import CONFIG as BRIDGE_CONFIG
from zerotools.formats.megatron.bridge_config import section_of
from zerotools.io.files.read_json import read_json
from zerotools.io.huggingface.model_sidecars import CONFIG, find_nearest
from zerotools.runs.find_job_checkpoints import RECORD
from zerotools.runs.training_record import LoraRecord

ADAPTER_CONFIG = "adapter_config.json"
BASE_NAME = "base_model_name_or_path"
# verl keeps PEFT's file in a directory, and otherwise only rank and alpha.
_INSIDE = "lora_adapter"
_VERL = "lora_train_meta.json"
# ms-swift keeps the arguments of its command.
_SWIFT = "args.json"
# Ways to begin that take something off the weight to which the product is added.
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_LARGEST = 2**24
_HALVES = ((A, B), (EMBEDDING_A, EMBEDDING_B))


def read_adapter_config(path: Path) -> dict[str, Any]:
    """Read the adapter_config.json at `path`, or in the directory `path`.

    Raises:
        BadRequest: the file does not exist.
        BadFile: the file is damaged.
        Unsupported: the config describes another kind of adapter than LoRA.
    """
    file = path / ADAPTER_CONFIG if path.is_dir() else path
    try:
        tree = read_json(file, _LARGEST)
    except OSError as error:
        raise BadRequest(
            f"{file} cannot be read: {error.strerror}; pass the directory with the "
            f"{ADAPTER_CONFIG} of PEFT's save_pretrained"
        ) from None
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{file} is not JSON: {error!s:.200}") from None
    if not isinstance(tree, dict) or "peft_type" not in tree:
        raise BadFile(f"{file} is not the config of an adapter: it has no peft_type")
    if tree["peft_type"] != "LORA":
        raise Unsupported(
            f"{file} is of a {tree['peft_type']} adapter, but zerotools exports only LoRA (with "
            "DoRA); save it with save_pretrained of PEFT"
        )
    return tree


def choose_config(
    checkpoint: Checkpoint,
    given: Path | None,
    record: LoraRecord | None,
    tensors: Sequence[AdapterTensor],
    name: str = DEFAULT,
    others: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Return the config of the adapter `name`, and notes on its source.

    The source is the path that the user gave, else the record of the job, else a file near the
    checkpoint. PEFT stores the config of an adapter that is not called `default` in a directory
    with the adapter's name. `others` are the names of the other adapters in the checkpoint, which
    may have another scale.

    Raises:
        BadRequest: the scale of the adapter is not known.
    """
    own = f"{name}/{ADAPTER_CONFIG}"
    if given is not None:
        return read_adapter_config(given / name if (given / own).is_file() else given), []
    if record is not None:
        return _of_record(record, checkpoint, tensors)
    places = [own] if name != DEFAULT else []
    if name == DEFAULT or not others:
        places += [ADAPTER_CONFIG, f"{_INSIDE}/{ADAPTER_CONFIG}"]
    for place in places:
        if (found := find_nearest(checkpoint.root, place)) is not None:
            return read_adapter_config(found), [f"took {ADAPTER_CONFIG} from {found.parent}"]
    for place, read in () if others else _RECORDS.items():
        if (found := find_nearest(checkpoint.root, place)) is not None:
            numbers = read(found)
            if numbers is not None:
                tree = _of_numbers(numbers, checkpoint, tensors)
                return tree, [f"took r and lora_alpha from {found}"]
    which = f"its adapter {name}" if others else "its adapter"
    raise BadRequest(
        f"no file in {checkpoint.origin.path} or near it has the scale (lora_alpha) of {which}: "
        f"pass --adapter-config DIR, the directory with the {ADAPTER_CONFIG} that PEFT's "
        "save_pretrained wrote for this run"
    )


def says_scale(checkpoint: Checkpoint) -> bool:
    """Return whether the scale of the checkpoint's adapter is recorded: in a file near the
    checkpoint, or in the record of a job."""
    root = checkpoint.root
    if any((directory / RECORD).is_file() for directory in (root, root.parent)):
        return True
    places = (ADAPTER_CONFIG, f"{_INSIDE}/{ADAPTER_CONFIG}", *_RECORDS)
    return any(find_nearest(root, place) is not None for place in places)


def _of_verl(file: Path) -> Mapping[str, Any]:
    """Read verl's file with the rank and scale of an adapter."""
    tree = _record(file)
    if not {"r", "lora_alpha"} <= tree.keys():
        raise BadFile(f"{file} has no r and lora_alpha; pass --adapter-config DIR")
    return tree


def _of_bridge(file: Path) -> Mapping[str, Any] | None:
    """Return the LoRA numbers in the configuration of a Megatron-Bridge run. Return None if the run
    has no adapter.
    """
    found = section_of(file, "peft")
    kind = str(found.get("_target_", "")).rpartition(".")[2]
    if not found:
        return None
    if kind not in _OF_BRIDGE or not {"dim", "alpha"} <= found.keys():
        raise Unsupported(
            f"{file}: the section peft has the _target_ {kind or None} and the keys "
            f"{', '.join(sorted(found))}, but zerotools reads only {' and '.join(_OF_BRIDGE)} with "
            "dim and alpha; pass --adapter-config DIR"
        )
    return {"r": found["dim"], "lora_alpha": found["alpha"]}


def _of_swift(file: Path) -> Mapping[str, Any] | None:
    """Return the LoRA numbers in the arguments of ms-swift; None for a file of another program."""
    tree = _record(file)
    if not {"lora_rank", "lora_alpha"} <= tree.keys():
        return None
    numbers = {"r": tree["lora_rank"], "lora_alpha": tree["lora_alpha"]}
    return {**numbers, "use_rslora": True} if tree.get("use_rslora") else numbers


def _record(file: Path) -> dict[str, Any]:
    try:
        tree = read_json(file, _LARGEST)
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(f"{file} cannot be read: {error!s:.200}") from None
    return tree if isinstance(tree, dict) else {}


_OF_BRIDGE = ("LoRA", "VLMLoRA")
_RECORDS: Mapping[str, Callable[[Path], Mapping[str, Any] | None]] = {
    _VERL: _of_verl,
    BRIDGE_CONFIG: _of_bridge,
    _SWIFT: _of_swift,
}


def _of_numbers(
    numbers: Mapping[str, Any], checkpoint: Checkpoint, tensors: Sequence[AdapterTensor]
) -> dict[str, Any]:
    """Return a config for an adapter with only its rank and scale recorded."""
    more = {"use_rslora": True} if numbers.get("use_rslora") else {}
    return {
        "peft_type": "LORA",
        "task_type": numbers.get("task_type") or _task_type(checkpoint),
        BASE_NAME: None,
        "r": numbers["r"],
        "lora_alpha": numbers["lora_alpha"],
        "target_modules": _modules(tensors, whole=False),
        "modules_to_save": _modules(tensors, whole=True) or None,
        "use_dora": any(each.part == MAGNITUDE for each in tensors),
        "inference_mode": True,
        **more,
    }


def _modules(tensors: Sequence[AdapterTensor], *, whole: bool) -> list[str]:
    """Return the modules with LoRA matrices, or with `whole`, the modules that the adapter
    replaces."""
    found = (each.module for each in tensors if (each.part == SAVED_WHOLE) == whole)
    return list(dict.fromkeys(found))


def _of_record(
    record: LoraRecord, checkpoint: Checkpoint, tensors: Sequence[AdapterTensor]
) -> tuple[dict[str, Any], list[str]]:
    modules = list(dict.fromkeys(each.module for each in tensors))
    alpha = record.scale * record.rank
    base = None if record.base is None else record.base.path
    tree = {
        "peft_type": "LORA",
        "task_type": _task_type(checkpoint),
        "base_model_name_or_path": base,
        "r": record.rank,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "lora_dropout": 0.0,
        "target_modules": modules,
        "fan_in_fan_out": bool(modules) and set(modules) <= set(record.fan_in_fan_out),
        "bias": "none",
        "modules_to_save": None,
        "inference_mode": True,
    }
    names = "it does not name the base model" if base is None else f"its base model is {base}"
    note = f"{ADAPTER_CONFIG} is made from the job's record; {names}"
    return tree, [note]


def _task_type(checkpoint: Checkpoint) -> str | None:
    path = checkpoint.model_sidecars.get(CONFIG)
    try:
        config = read_json(path, _LARGEST) if path is not None else {}
    except (OSError, BadFile, ValueError, RecursionError):
        return None
    names = config.get("architectures") if isinstance(config, dict) else None
    if isinstance(names, list) and names:
        if str(names[0]).endswith(("ForCausalLM", "LMHeadModel")):
            return "CAUSAL_LM"
        if config.get("is_encoder_decoder") is True:
            return "SEQ_2_SEQ_LM"
    return None


def refuse_changed_base(config: Mapping[str, Any], path: object) -> None:
    """Refuse an adapter with an initialization (`init_lora_weights`) that changed the base model.

    Raises:
        Unsupported: the config names such an initialization.
    """
    began = config.get("init_lora_weights")
    if isinstance(began, str) and began.lower().startswith(_CHANGE_THE_BASE):
        raise Unsupported(
            f"{path} has init_lora_weights = {began!r:.40}, which changed the weights of the base "
            "model before training, so the given base differs; convert the adapter with "
            "save_pretrained(..., path_initial_model_for_weight_conversion=...) of PEFT"
        )


def scale_of(config: Mapping[str, Any], module: str) -> float:
    """Return the factor of the product of a layer's two matrices: `lora_alpha / r` or `lora_alpha /
    sqrt(r)`.

    Raises:
        BadFile: the config has no such number.
    """
    rank, alpha = rank_and_alpha(config, module)
    if not _is_finite(rank) or not _is_finite(alpha) or rank <= 0:
        raise BadFile(
            f"{ADAPTER_CONFIG} has r {rank!r:.40} and lora_alpha {alpha!r:.40} for {module}: "
            "they must be finite numbers, and r above 0; pass the config of this run with "
            "--adapter-config"
        )
    return float(alpha / (rank**0.5 if config.get("use_rslora") else rank))


def rank_and_alpha(config: Mapping[str, Any], module: str) -> tuple[Any, Any]:
    """Return the values of r and lora_alpha for a layer."""
    rank = _of_module(config, "rank_pattern", module, config.get("r"))
    return rank, _of_module(config, "alpha_pattern", module, config.get("lora_alpha"))


def token_indices(config: Mapping[str, Any], module: str) -> list[int]:
    """Return the indices of the trained rows of the embedding `module`; the others were frozen.

    Raises:
        BadFile: the config does not list them.
    """
    given = config.get("trainable_token_indices")
    if isinstance(given, dict):
        matching = [rows for name, rows in given.items() if f".{module}".endswith(f".{name}")]
        given = matching[0] if matching else next(iter(given.values()), None)
    if not isinstance(given, list) or any(type(each) is not int for each in given):
        raise BadFile(f"{ADAPTER_CONFIG}: trainable_token_indices is not a list of numbers")
    return given


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def check_config(
    config: Mapping[str, Any],
    tensors: Sequence[AdapterTensor],
    held: Mapping[str, Tensor],
    path: object,
) -> None:
    """Check that the config describes this adapter, and that the adapter has both LoRA matrices of
    each layer. `held` are its tensors, keyed by their names in PEFT's files.

    Raises:
        BadRequest: the config describes another adapter.
        BadFile: the adapter lacks one of two matrices, or their shapes do not fit.
    """
    by_module: dict[str, dict[str, Tensor]] = {}
    for each in tensors:
        if not each.saved.endswith(".bias"):
            by_module.setdefault(each.module, {})[each.part] = held[each.saved]
    for module, parts in by_module.items():
        for down, up in _HALVES:
            if (down in parts) != (up in parts):
                lacking = up if down in parts else down
                raise BadFile(f"{path}: the adapter of {module} has no {lacking}")
            if down in parts:
                _check_rank(config, module, parts[down], parts[up], path)
    parts_found = {each.part for each in tensors}
    for part, key in (
        (MAGNITUDE, "use_dora"),
        (SAVED_WHOLE, "modules_to_save"),
        (TOKENS, "trainable_token_indices"),
    ):
        if part in parts_found and not config.get(key):
            raise BadRequest(
                f"{path} has {part} of its adapter, but {ADAPTER_CONFIG} does not have {key}: "
                "it is the config of another adapter; pass the config of this run with "
                "--adapter-config"
            )
    if config.get("use_dora") and MAGNITUDE not in parts_found:
        raise BadRequest(
            f"{ADAPTER_CONFIG} has use_dora, but {path} has no {MAGNITUDE}: it is the config of "
            "another adapter; pass the config of this run with --adapter-config"
        )


def _check_rank(
    config: Mapping[str, Any], module: str, down: Tensor, up: Tensor, path: object
) -> None:
    if len(down.shape) < 2 or len(up.shape) < 2 or down.shape[0] != up.shape[1]:
        raise BadFile(
            f"{path}: the two matrices of the adapter of {module} have the shapes "
            f"{list(down.shape)} and {list(up.shape)}, which do not fit"
        )
    if config.get("target_parameters"):  # experts one behind another in one matrix
        return
    expected, _ = rank_and_alpha(config, module)
    if expected != down.shape[0]:
        raise BadRequest(
            f"{path}: the adapter of {module} has rank {down.shape[0]}, but {ADAPTER_CONFIG} "
            f"has {expected!r:.40}: it is the config of another adapter; pass the config of "
            "this run with --adapter-config"
        )


def _of_module(config: Mapping[str, Any], patterns: str, module: str, otherwise: Any) -> Any:
    """Return the value for a layer from the table `patterns` of the config: that of the first
    pattern that matches the end of the layer's name, else `otherwise`."""
    given = config.get(patterns) or {}
    if not isinstance(given, dict):
        raise BadFile(f"{ADAPTER_CONFIG}: {patterns} is a {type(given).__name__}, not a dict")
    whole = {rf"(.*\.)?({pattern})$": value for pattern, value in given.items()}
    matched = _matcher(tuple(whole)).matching(module)
    return whole[matched[0]] if matched else otherwise


@lru_cache(maxsize=4)
def _matcher(patterns: tuple[str, ...]) -> NamePatterns:
    return NamePatterns(patterns, ADAPTER_CONFIG)
