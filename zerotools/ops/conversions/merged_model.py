"""The model of a run, for all commands that write a model. It has the trained weights, or for a
LoRA run the base model with the adapter merged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.adapter_tensor_names import tensor_of_other_kind
from zerotools.core.checkpoint import Checkpoint, Tensor
from zerotools.core.dtypes import PRECISIONS, DType
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.target import Target
from zerotools.formats import FormatTable
from zerotools.formats.format import option_flag
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.conversions.quantised_export import AUTO
from zerotools.ops.copied_sidecars import with_sidecars
from zerotools.ops.quantised.quantise import QUANTISERS
from zerotools.ops.weights.select_and_rename import SIXTEEN_BIT
from zerotools.ops.weights.tied_weights import with_untied_config

if TYPE_CHECKING:  # imported where they are used, because few models have adapters
    from zerotools.ops.weights.lora_merge import AdapterRequest, MergedAdapters

ADAPTER_OPTIONS = ("adapter_only", "adapter_config", "adapter_name", "base")


@dataclass(frozen=True)
class MergedModel:
    """`checkpoint` has the weights of the model, with its config and tokenizer. `merged` are the
    adapters that were merged into the weights; None if no adapter was merged. `notes` name the
    directories of the config and tokenizer.
    """

    checkpoint: Checkpoint
    notes: tuple[str, ...] = ()
    merged: MergedAdapters | None = None

    @property
    def is_merged(self) -> bool:
        """True if an adapter was merged."""
        return self.merged is not None

    def kept_dtype(self, tensor: Tensor) -> DType:
        """Return the dtype of a tensor in an output that keeps dtypes. A merged weight gets the
        dtype of the base model's weight."""
        merged = self.merged
        if merged is None or merged.dtype is None:
            return tensor.dtype
        prefix = f"{merged.scratch}/"
        is_sum = any(chunk.file.startswith(prefix) for chunk in tensor.chunks)
        return merged.dtype if is_sum else tensor.dtype

    def with_config(self, target: Target, weights: Checkpoint) -> Target:
        """Return `target` with a config.json that fits the weights."""
        if CONFIG not in target.files:
            return target
        if self.merged is None:
            return with_untied_config(target, weights)
        from zerotools.ops.weights.merged_config import with_merged_config

        return with_merged_config(target, weights)

    def with_sums(self, conversion: Conversion) -> Conversion:
        """Return `conversion` with the step that computes the merged weights."""
        merged = self.merged
        if merged is None:
            return conversion
        return replace(
            conversion,
            notes=(*conversion.notes, *merged.notes),
            sums=merged.sums,
            sums_bytes=merged.bytes,
            sums_directory=merged.scratch,
        )


def merged_model(
    checkpoint: Checkpoint,
    destination: Path,
    request: AdapterRequest,
    *,
    config_dir: Path | None,
    table: FormatTable,
    fallback_sidecars: Mapping[str, Path] | None = None,
    is_merged: bool = True,
) -> MergedModel:
    """Return the model of `checkpoint` for an export at `destination`, with adapters merged if
    `is_merged`.

    `config_dir` has a config.json and a tokenizer, which replace those near the checkpoint.
    `fallback_sidecars` are used if such files are neither in `config_dir` nor near the checkpoint.

    Raises:
        BadFile, BadRequest, Unsupported: as `merge_adapters`.
        Unsupported: the checkpoint has an adapter of PEFT that is not LoRA.
    """
    merged, found = None, dict(fallback_sidecars or {})
    if is_merged:
        from zerotools.ops.weights.lora_merge import merge_adapters

        refuse_other_kinds(checkpoint)
        around, _ = with_sidecars(checkpoint, config_dir, found)
        request = replace(request, model_config=around.model_sidecars.get(CONFIG))
        scratch = destination.with_name(f".{destination.name}.sums")
        merged = merge_adapters(checkpoint, scratch, table, request)
    checkpoint = checkpoint if merged is None else merged.checkpoint
    checkpoint, notes = with_sidecars(checkpoint, config_dir, found)
    if merged is not None:
        from zerotools.ops.weights.merged_config import with_base_config

        checkpoint, more = with_base_config(checkpoint, merged.base)
        notes += more
    return MergedModel(checkpoint, tuple(notes), merged)


def refuse_other_kinds(checkpoint: Checkpoint) -> None:
    """Refuse an adapter that is not LoRA.

    Raises:
        Unsupported: the checkpoint has a tensor of such an adapter.
    """
    name = tensor_of_other_kind(checkpoint.tensors)
    if name is not None:
        raise Unsupported(
            f"{checkpoint.origin.path} has {name}, a tensor of an adapter that is not LoRA, and "
            "zerotools merges only LoRA (also with DoRA, modules_to_save and trainable tokens); "
            "merge the adapter with PEFT's merge_and_unload"
        )


def refuse_with_adapter(options: Collection[str]) -> None:
    """Refuse `options` for whole models in combination with --adapter-only.

    Raises:
        BadRequest: `options` is not empty.
    """
    if options:
        raise BadRequest(
            f"--adapter-only exports an adapter as PEFT saves it, and does not take "
            f"{' and '.join(map(option_flag, options))}; leave it out"
        )


def adapter_dtype(checkpoint: Checkpoint, asked: str) -> DType | None:
    """Return the dtype for an adapter that is exported without its model. None means that each
    tensor keeps its dtype. For `asked` = "auto" it is the dtype of a 16-bit run, else None.

    Raises:
        BadRequest: the dtype would quantise the adapter.
    """
    if asked in QUANTISERS:
        raise BadRequest(f"--dtype {asked} is for whole models; leave it out with --adapter-only")
    if asked != AUTO:
        return PRECISIONS.get(asked)
    precision = checkpoint.origin.precision
    return precision if precision in SIXTEEN_BIT else None
