"""`zerotools consolidate`: one model with 16-bit weights from any sharded checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools import formats
from zerotools.core import dtypes
from zerotools.core.adapter_tensor_names import is_adapter_checkpoint
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import FLOAT32, DType
from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats import FORMATS, FormatTable, training_of
from zerotools.formats.format import (
    DEFAULT_MAX_SHARD_BYTES,
    Format,
    WriteOptions,
    format_option,
)
from zerotools.formats.torch_optimizers import notes_on_weights
from zerotools.io.files.regular_files import read_user_file
from zerotools.io.files.source_stamps import recording_sources
from zerotools.io.huggingface.config_json import ALWAYS_KEPT, kept_in_fp32
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.maps.map_file import HUB
from zerotools.ops.conversions.adapter_export import (
    AdapterExport,
    prepare_adapter,
)
from zerotools.ops.conversions.conversion import Conversion, refuse_blocked
from zerotools.ops.conversions.merged_model import (
    adapter_dtype,
    merged_model,
    refuse_with_adapter,
)
from zerotools.ops.conversions.quantised_export import (
    AUTO,
    dequantise_if_requested,
    quantise_and_describe,
    refuse_bare_casts,
    refuse_quantising,
    with_quantised_config,
)
from zerotools.ops.copied_sidecars import lacking_config
from zerotools.ops.quantised.dequantise import refuse_split
from zerotools.ops.quantised.find_quantised import find_quantised
from zerotools.ops.quantised.quantise import QUANTISERS
from zerotools.ops.verification.checkpoint_files import files_of
from zerotools.ops.verification.digest_manifest import sidecar_of
from zerotools.ops.weights.convert_layout import MapRequest, mapped_checkpoint
from zerotools.ops.weights.lora_merge import AdapterRequest
from zerotools.ops.weights.merged_config import model_config
from zerotools.ops.weights.model_to_match import Reference, check_against, read_reference
from zerotools.ops.weights.name_check import named_for_model
from zerotools.ops.weights.restore_hub_layout import hub_layout_of, on_hub_note, restore_hub_layout
from zerotools.ops.weights.select_and_rename import (
    MASTERS,
    SIXTEEN_BIT,
    choose_names,
    describe_output,
    name_function,
    name_matcher,
    parse_rule,
    rename_tensors,
    weights_from,
)
from zerotools.ops.weights.tied_weights import resolve_aliases
from zerotools.runs.job_checkpoint_file_names import MANIFEST

DTYPES = dtypes.PRECISIONS


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `zerotools consolidate`.

    Attributes:
        dtype: a key of `DTYPES` or of `QUANTISERS`, or "auto".
        weights_from: "masters" or "weights".
        format: the output format, by its name on the command line.
        strip_prefix, rename, mapping: change the names, in this order. `strip_prefix` has prefixes
            to remove, `rename` has rules `REGEX=REPL`, and `mapping` converts the tensors to
            another layout.
        include, exclude, like: select tensors by their changed names.
        adapter_only: export only the PEFT adapter `adapter_name`, with the config at
            `adapter_config` (None: that of the run). If it is False, adapters are merged into the
            model.
        base: the directory of the model that a separately saved adapter is added to; None: the
            model that the run names.
        check_names: refuse names that the model in config.json does not have.
    """

    dtype: str = AUTO
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES
    weights_from: str = MASTERS
    strip_prefix: Sequence[str] = ()
    rename: Sequence[str] = ()
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    like: Path | None = None
    keep_aliases: bool = False
    format: str = "safetensors"
    adapter_only: bool = False
    adapter_config: Path | None = None
    adapter_name: str | None = None
    base: Path | None = None
    mapping: MapRequest | None = None
    check_names: bool = True


# What shapes a whole model, and no adapter.
_OF_MODELS = (
    "max_shard_bytes", "strip_prefix", "rename", "include", "exclude", "like", "keep_aliases",
)  # fmt: skip


def prepare_export(
    path: Path,
    destination: Path,
    options: Options,
    *,
    tag: str | None = None,
    layout: Path | None = None,
    config_dir: Path | None = None,
    section: str | None = None,
    table: FormatTable = FORMATS,
) -> Conversion:
    """Plan the export of the checkpoint at `path` to `destination`, without writing it.
    `config_dir` has a config.json and a tokenizer, which replace those near the checkpoint.

    Raises:
        BadRequest: `path` does not exist, no tensor is selected, two tensors would get the same
            name, or the export would differ from the model at `like`.
        BadFile: `path` is not a checkpoint, or its metadata is damaged.
    """
    with recording_sources() as sources:
        checkpoint = formats.read(path, tag=tag, layout=layout, section=section, table=table)
        asked = (
            options,
            tag,
            section,
            config_dir,
            read_user_file(layout) if layout is not None else None,
            options.mapping.text if options.mapping is not None else None,
        )
        conversion = _prepare(checkpoint, destination, options, config_dir, repr(asked), table)
    return replace(conversion, stamps=sources.stamps, command="consolidate")


def _prepare(
    checkpoint: Checkpoint,
    destination: Path,
    options: Options,
    config_dir: Path | None,
    request: str,
    table: FormatTable,
) -> Conversion:
    form = exported_formats(table)[options.format]
    source = formats.format_of(checkpoint, table)
    _check_adapter_options(options)
    refuse_blocked(checkpoint, but_for_names=True)
    if options.adapter_only:
        if options.weights_from == MASTERS:
            source.check_weights(checkpoint)
        return prepare_adapter(
            checkpoint,
            destination,
            form,
            AdapterExport(
                _adapter_request(options),
                dtype=adapter_dtype(checkpoint, options.dtype),
                mapping=options.mapping,
                check_names=options.check_names,
            ),
            config_dir=config_dir,
            request=request,
            table=table,
        )
    is_selected = name_matcher(options.include, options.exclude)
    like = read_reference(options.like).only(is_selected) if options.like is not None else None
    if options.weights_from == MASTERS:
        source.check_weights(checkpoint)
    whole = merged_model(
        checkpoint,
        destination,
        _adapter_request(options),
        config_dir=config_dir,
        table=table,
        fallback_sidecars=like.model_sidecars if like is not None else {},
        is_merged=not (
            options.include and options.base is None and is_adapter_checkpoint(checkpoint.tensors)
        ),
    )
    checkpoint = whole.checkpoint
    if whole.is_merged:
        options = replace(options, weights_from=MASTERS)
    quantisation = find_quantised(checkpoint)
    checkpoint, said = dequantise_if_requested(checkpoint, quantisation, options.dtype)
    keeps_types = quantisation.is_there and options.dtype == AUTO
    dtype, why = choose_dtype(checkpoint, AUTO if options.dtype in QUANTISERS else options.dtype)
    weights, notes = _choose_weights(
        checkpoint, options, is_selected, like, table, is_merged=whole.is_merged
    )
    types = like if options.dtype == AUTO else None
    cast = cast_types(weights, None if keeps_types else dtype)
    described = describe_output(weights, lambda key, tensor: _type_of(key, tensor, cast, types))
    if like is not None:
        check_against(described, like)
    elif not keeps_types:
        notes += [*([why] if why else []), *kept_note(described, dtype)]
    if keeps_types:
        refuse_split(checkpoint, weights, quantisation)
    made = None
    if options.dtype in QUANTISERS:
        made, described = quantise_and_describe(weights, described, quantisation, options.dtype)
        weights = made.weights
    write = WriteOptions(max_shard_bytes=options.max_shard_bytes)
    target = form.export(described, destination, write)
    target = with_quantised_config(target, weights, quantisation, made, options.dtype)
    target = whole.with_config(target, weights)
    notes = [*notes, *said, *whole.notes, *target.notes, *unproved_save(checkpoint, source, table)]
    lacking = lacking_config(weights, target)
    refuse_bare_casts(weights, target, quantisation)
    as_read = checkpoint if options.mapping is not None else None
    conversion = Conversion(
        weights, target, tuple(notes), request, lacking=lacking, table=table, as_read=as_read
    )
    return whole.with_sums(conversion)


def _adapter_request(options: Options) -> AdapterRequest:
    return AdapterRequest(
        options.base, options.adapter_config, options.adapter_name, options.weights_from
    )


def _check_adapter_options(options: Options) -> None:
    """Raise an error if options for a whole model are combined with --adapter-only."""
    if options.adapter_only:
        plain = Options()
        changed = (name for name in _OF_MODELS if getattr(options, name) != getattr(plain, name))
        refuse_with_adapter([name for name in changed if getattr(options, name) != []])


def exported_formats(table: FormatTable = FORMATS) -> dict[str, Format]:
    """Return the output formats of `consolidate`, keyed by their names on the command line."""
    return {format_option(form): form for form in table.values() if form.is_exported}


def _choose_weights(
    checkpoint: Checkpoint,
    options: Options,
    is_selected: Callable[[str], bool],
    like: Reference | None,
    table: FormatTable,
    *,
    is_merged: bool,
) -> tuple[Checkpoint, list[str]]:
    """Return the weights of the output under their output names, and notes."""
    new_name = name_function(options.strip_prefix, [parse_rule(text) for text in options.rename])
    weights = weights_from(checkpoint, options.weights_from)
    layout = hub_layout_of(checkpoint, table)
    weights = rename_tensors(restore_hub_layout(weights, layout), new_name)
    mapped_notes: tuple[str, ...] = ()
    if options.mapping is not None:
        refuse_quantising(options.dtype)
        found = mapped_checkpoint(weights, options.mapping, training_of(checkpoint, table))
        weights, mapped_notes = found.checkpoint, found.notes
    every, weights = weights, choose_names(weights, is_selected)
    if not weights.tensors:
        roles = sorted({key.role for key in checkpoint.tensors})
        held = "" if "param" in roles else f" (it holds only {', '.join(roles)})"
        raise BadRequest(
            f"{checkpoint.origin.path} has no weights that match{held}; nothing to export"
        )
    is_hub = options.mapping is None or options.mapping.to == HUB
    is_checked = options.check_names and is_hub
    fitting = named_for_model(every, weights, like, is_checked=is_checked, is_merged=is_merged)
    weights, said = resolve_aliases(
        fitting.weights, keep=options.keep_aliases, like=like, ties=fitting.ties
    )
    useless = _useless_prefixes(checkpoint, options.strip_prefix)
    notes = [
        *notes_on_weights(checkpoint.origin.notes),
        *on_hub_note(layout),
        *useless,
        *mapped_notes,
    ]
    notes += [*fitting.notes, *said]
    return weights, notes


def _useless_prefixes(checkpoint: Checkpoint, prefixes: Sequence[str]) -> list[str]:
    names = {key.name for key in checkpoint.tensors}
    notes = []
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            notes.append(f"no name begins with {prefix!r}, which --strip-prefix would remove")
        names = {name.removeprefix(prefix) for name in names}
    return notes


def choose_dtype(checkpoint: Checkpoint, asked: str) -> tuple[DType, str | None]:
    """Return the dtype of the export's floating-point tensors, and a sentence about the reason for
    this choice. The sentence is None if the user or the run determines the dtype.

    Raises:
        BadRequest: `asked` quantises, and the command does not.
    """
    if asked in QUANTISERS:
        raise BadRequest(
            f"--dtype {asked} is for consolidate, convert and serve; choose another dtype"
        )
    if asked != AUTO:
        return DTYPES[asked], None
    precision = checkpoint.origin.precision
    if precision in SIXTEEN_BIT:
        return precision, None
    present = {
        tensor.dtype
        for key, tensor in checkpoint.tensors.items()
        if key.role in ("param", "param16") and tensor.dtype in SIXTEEN_BIT
    }
    if len(present) == 1:
        return present.pop(), None
    reason = "the checkpoint holds both 16-bit types" if present else "the run was in fp32"
    return dtypes.BFLOAT16, f"--dtype auto chose bf16: {reason}"


_TypeOf = Callable[[Key, Tensor], DType]


def _type_of(key: Key, tensor: Tensor, cast: _TypeOf, like: Reference | None) -> DType:
    """Return the dtype of a tensor in the export. The reference model `like`, if given, may replace
    the result of `cast`."""
    chosen = cast(key, tensor)
    return chosen if like is None else like.dtype_for(key.name, tensor.dtype, chosen)


def cast_types(weights: Checkpoint, dtype: DType | None) -> _TypeOf:
    """Return a function that maps a tensor of `weights` to its dtype after a cast to `dtype`. If
    `dtype` is None, all tensors keep their dtype.

    Integers, booleans and 8-bit floats (which have scales) keep their dtype. So do fp32 tensors
    that transformers keeps in fp32 in a 16-bit model.
    """
    path = weights.model_sidecars.get(CONFIG)
    kept = ALWAYS_KEPT
    if path is not None and dtype is not None:
        kept = kept_in_fp32(model_config(path), dtype)

    def type_of(key: Key, tensor: Tensor) -> DType:
        is_cast = tensor.dtype.is_float and tensor.dtype.bits >= 16
        is_kept = tensor.dtype == FLOAT32 and dtype in SIXTEEN_BIT and kept.search(key.name)
        return dtype if is_cast and dtype is not None and not is_kept else tensor.dtype

    return type_of


def kept_note(described: Checkpoint, dtype: DType) -> list[str]:
    """Return a list with one note on the tensors of an output in `dtype` that stay in fp32. The
    list is empty if there are no such tensors, or if `dtype` does not have 16 bits.
    """
    kept = [key.name for key, tensor in described.tensors.items() if tensor.dtype == FLOAT32]
    if not kept or dtype not in SIXTEEN_BIT:
        return []
    more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
    return [f"not rounded to 16 bits, as in transformers: {kept[0]}{more}"]


def unproved_save(checkpoint: Checkpoint, form: Format, table: FormatTable) -> list[str]:
    """Return a list with one warning if zerotools cannot prove that the same save wrote all files,
    else an empty list.

    There is no proof if the files do not record their save, and no manifest lists them.
    """
    if checkpoint.origin.world_size in (None, 1) or len(checkpoint.files) < 2:
        return []
    root = checkpoint.root
    if any((each / MANIFEST).is_file() for each in (root, root.parent)):
        return []
    if sidecar_of(files_of(checkpoint, table)).is_file():
        return []
    try:
        left = checkpoint.files.keys() - set(form.files_of_one_save(checkpoint))
    except BadFile:  # reported when it is read
        return []
    if not left:
        return []
    return [
        (
            f"{len(left)} of {count_text(len(checkpoint.files), 'file')} do not record which save "
            "they are from, so zerotools cannot check that all are from the same save: run "
            "zerotools verify --write-manifest right after each save to record it"
        )
    ]
