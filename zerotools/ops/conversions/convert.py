"""`zerotools convert`: write a checkpoint in another format, and list the parts that this format
cannot hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerotools import formats
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest, Unsupported, ZerotoolsError
from zerotools.core.target import Dropped, Target, optimizer_roles
from zerotools.core.training_state import TrainingState
from zerotools.formats import FORMATS, FormatTable
from zerotools.formats.format import Format, ReadOptions, WriteOptions, format_option, option_flag
from zerotools.formats.torch_optimizers import (
    NAMED_BY_SHAPE,
    NUMBERED_STATE,
    ORDER_UNKNOWN,
    WEIGHT_ROLES,
    notes_on_weights,
)
from zerotools.io.files.regular_files import read_user_file
from zerotools.io.files.source_stamps import recording_sources
from zerotools.io.huggingface.model_sidecars import optimizer_files
from zerotools.io.output.files_without_tensors import carried_file
from zerotools.ops.conversions.conversion import Conversion, Unchanged, with_target_sources
from zerotools.ops.conversions.merged_model import (
    ADAPTER_OPTIONS,
    MergedModel,
    adapter_dtype,
    merged_model,
    refuse_with_adapter,
)
from zerotools.ops.conversions.missing_optimizer_options import (
    NAMES,
    RequestedHyperparameters,
    with_missing_options,
)
from zerotools.ops.conversions.quantised_export import (
    KEEP,
    dequantise_if_requested,
    refuse_bare_casts,
    refuse_quantising,
)
from zerotools.ops.conversions.reshard import check_world_size, plan_reshard
from zerotools.ops.copied_sidecars import lacking_config, requested_sidecars
from zerotools.ops.quantised.dequantise import with_true_config
from zerotools.ops.quantised.find_quantised import find_quantised
from zerotools.ops.quantised.quantised_weights import Quantisation
from zerotools.ops.resume_from_other_program.name_numbered_state import (
    NamedCheckpoint,
    record_of,
    with_names,
    with_numbered_state,
    with_proved_names,
    without_optimizer,
)
from zerotools.ops.undeclared_dropped_data import left_behind, undeclared_dropped_data
from zerotools.runs.optimizer_names_record import named_order_of, with_record

if TYPE_CHECKING:  # imported where they are used, because most conversions need none of them
    from zerotools.ops.resume_from_other_program.parameter_order_option import AskedOrder
    from zerotools.ops.weights.convert_layout import MapRequest
    from zerotools.ops.weights.lora_merge import AdapterRequest

JOB = "job"
"""The name on the command line of the target that `prepare_job` writes."""
DTYPE, ORDER, WEIGHTS_ONLY = "dtype", "order", "weights_only"
NO_CHECK, FORCE = "no_check_names", "force"


@dataclass(frozen=True)
class _Request:
    """A requested conversion. `options` are the user's options keyed by name."""

    table: FormatTable
    form: Format
    destination: Path
    options: Mapping[str, Any]
    text: str
    mapping: MapRequest | None = None

    @property
    def adapter(self) -> AdapterRequest:
        from zerotools.ops.weights.lora_merge import AdapterRequest

        given = self.options.get
        return AdapterRequest(given("base"), given("adapter_config"), given("adapter_name"))

    @property
    def writing(self) -> WriteOptions:
        others = (*NAMES, ORDER, WEIGHTS_ONLY, DTYPE, NO_CHECK)
        names = {name for name in self.options if name not in others}
        names -= {*ADAPTER_OPTIONS}
        return WriteOptions(**{name: self.options[name] for name in names})


def written_formats(table: FormatTable = FORMATS) -> dict[str, Format]:
    """Return the output formats of `convert`, keyed by their names on the command line."""
    return {format_option(form): form for form in table.values() if form.is_written}


def prepare_convert(
    path: Path,
    destination: Path,
    to: str,
    options: Mapping[str, Any],
    *,
    reading: ReadOptions | None = None,
    config_dir: Path | None = None,
    mapping: MapRequest | None = None,
    table: FormatTable = FORMATS,
) -> Conversion | Unchanged:
    """Plan the conversion of the checkpoint at `path` to the format `to`, without writing it.

    A checkpoint that already has the format `to` is resharded with all its contents. If this would
    change nothing, the result is `Unchanged`, unless the option `force` or a `mapping` is given.

    Args:
        options: the user's options, keyed by name.
        config_dir: a directory with config.json and the tokenizer, if the source lacks them.
        mapping: converts all tensors to another layout, including those of the optimizer.

    Raises:
        BadRequest: `path` does not exist; the format `to` does not take an option; or a value that
            this format needs is not known.
        BadFile: `path` is not a checkpoint, or its metadata is damaged.
        Unsupported: the format `to` cannot hold the weights of the checkpoint.
    """
    form = written_formats(table)[to]
    force, options = bool(options.get(FORCE)), {n: v for n, v in options.items() if n != FORCE}
    _check_options(form, options)
    given = reading or ReadOptions()
    with recording_sources() as sources:
        source = formats.read_any(
            path, tag=given.tag, layout=given.layout, section=given.section, table=table
        )
        formats.require_readable(source)
        rules = given.layout and read_user_file(given.layout)
        asked = mapping and mapping.text
        choice = (to, sorted(options.items()), given.tag, rules, given.section, config_dir, asked)
        request = _Request(table, form, destination, options, repr(choice), mapping)
        whole = given.section is None and "style" not in options
        done = _prepare(source, request, config_dir, force=force, keeps_all=whole)
    return done if isinstance(done, Unchanged) else replace(done, stamps=sources.stamps)


def _prepare(
    source: Checkpoint, request: _Request, config_dir: Path | None, *, force: bool, keeps_all: bool
) -> Conversion | Unchanged:
    form, table = request.form, request.table
    given = {} if config_dir is None else requested_sidecars(config_dir)
    source = replace(source, model_sidecars={**source.model_sidecars, **given})
    if request.options.get("adapter_only"):
        return _adapter(source, request, config_dir)
    model = MergedModel(source)
    if not form.writes_state:
        formats.require_model(source)
        asked = request.adapter
        model = merged_model(source, request.destination, asked, config_dir=config_dir, table=table)
        source = model.checkpoint
    read_by = formats.format_of(source, table)
    order = _order(source, request, given)
    is_kept = keeps_all and request.mapping is None and order is None
    is_kept = is_kept and not _leaves_stage_0(source, request)
    if form.reshards and read_by is form and is_kept and WEIGHTS_ONLY not in request.options:
        done = _resharded(source, request, force=force)
        if isinstance(done, Unchanged):
            return done
        target = _with_sidecars(done.target, given)
        return replace(done, target=with_true_config(target, source, find_quantised(source)))
    formats.require_model(source)
    read_by.check_weights(source)
    quantisation = find_quantised(source)
    source, values_said = dequantise_if_requested(
        source, quantisation, request.options.get(DTYPE, KEEP)
    )
    source, training = _with_state(source, request)
    read = source
    run = _named(source, training, request, order)
    source, training, notes = run.checkpoint, run.training, list(run.notes)
    if request.mapping is not None:
        from zerotools.ops.weights.convert_adapter_layout import scale_note
        from zerotools.ops.weights.convert_layout import mapped_checkpoint, mapped_training

        refuse_quantising(request.options.get(DTYPE, KEEP))
        made = mapped_checkpoint(source, request.mapping, training)
        if made.is_changed:
            training = mapped_training(source, training, made.origins)
        if made.adapter is not None:
            notes.append(scale_note(source, made.adapter))
        source, notes = made.checkpoint, [*notes, *made.notes]
    target = _with_sidecars(_lay_out(source, training, request, quantisation, model), given)
    if form.writes_state:
        target = with_true_config(target, source, quantisation)
    if order is not None:
        target = with_record(target, record_of(order, training))
    elif optimizer_roles(target.checkpoint):
        target = with_record(target, named_order_of(read))
    beside, left = left_behind(read, target, table)
    known = {dropped.what for dropped in target.dropped}
    more = [
        *undeclared_dropped_data(source, training.scalars, target),
        *(d for d in beside if d.what not in known),
        *(_left_out(read) if request.options.get(WEIGHTS_ONLY) else ()),
    ]
    target = replace(target, dropped=(*target.dropped, *more, *read_by.never_written(read)))
    origin = [note for note in source.origin.notes if note not in run.settled]
    if not form.writes_state:
        origin, notes = notes_on_weights(origin), notes_on_weights(notes)
    notes = [*origin, *values_said, *notes, *target.notes]
    notes += [*_weights_only(read, request), *_one_rank(read, request), *left]
    is_model = form.is_weights_format and not form.writes_state
    lacking = lacking_config(source, target) if is_model else None
    whole = with_target_sources(source, target)
    refuse_bare_casts(whole, target, quantisation)
    conversion = Conversion(
        whole,
        target,
        tuple(dict.fromkeys((*notes, *model.notes))),
        request.text,
        lacking=lacking,
        table=table,
        as_read=read if source is not read else None,
    )
    return model.with_sums(conversion)


def _adapter(source: Checkpoint, request: _Request, config_dir: Path | None) -> Conversion:
    from zerotools.ops.conversions.adapter_export import AdapterExport, prepare_adapter

    options, form = request.options, request.form
    formats.format_of(source, request.table).check_weights(source)
    refuse_with_adapter([name for name in ("max_shard_bytes",) if name in options])
    return prepare_adapter(
        source,
        request.destination,
        form,
        AdapterExport(
            request.adapter,
            dtype=adapter_dtype(source, options.get(DTYPE, KEEP)),
            mapping=request.mapping,
            check_names=NO_CHECK not in options,
        ),
        config_dir=config_dir,
        request=request.text,
        table=request.table,
    )


def _lay_out(
    source: Checkpoint,
    training: TrainingState,
    request: _Request,
    found: Quantisation,
    model: MergedModel,
) -> Target:
    form, options = request.form, request.writing
    if form.writes_state:
        return form.lay_out(source, training, request.destination, options)
    from zerotools.maps.map_file import HUB
    from zerotools.ops.conversions.weights_without_optimizer import weights_alone

    dtype = request.options.get(DTYPE, KEEP)
    is_hub = request.mapping is None or request.mapping.to == HUB
    chosen = weights_alone(
        source,
        training,
        form,
        dtype,
        request.table,
        found,
        is_checked=is_hub and NO_CHECK not in request.options,
        model=model,
    )
    target = form.lay_out(chosen.described, training, request.destination, options)
    target = model.with_config(chosen.configured(target), chosen.weights)
    return replace(
        target,
        notes=(*target.notes, *chosen.notes),
        sources=chosen.new_sources(source),
        target_keys=chosen.keys,
        dropped=(*target.dropped, *chosen.dropped),
    )


def _check_options(form: Format, options: Mapping[str, Any]) -> None:
    taken = {*form.write_options}
    taken |= {*(NAMES if form.writes_state else (DTYPE, NO_CHECK, *ADAPTER_OPTIONS))}
    taken |= {ORDER, WEIGHTS_ONLY} if form.writes_state else set()
    useless = [option_flag(name) for name in options if name not in taken]
    if useless:
        raise BadRequest(
            f"--to {format_option(form)} does not take {' and '.join(sorted(useless))}; leave it "
            "out"
        )
    if "world_size" in options:
        check_world_size(options["world_size"])


def _with_sidecars(target: Target, given: Mapping[str, Path]) -> Target:
    """Return the target with the config and tokenizer files `given` in place of those of the
    source."""
    files = dict(target.files)
    for name, path in given.items():
        plan = files.get(name)
        if plan is None or any(part.source != path for part in plan.carried):
            files[name] = carried_file(path)
    sizes = {name: plan.size for name, plan in files.items()}
    return replace(target, files=files, checkpoint=replace(target.checkpoint, files=sizes))


def _resharded(source: Checkpoint, request: _Request, *, force: bool) -> Conversion | Unchanged:
    """Plan a conversion to the source's own format. It keeps all contents of the checkpoint."""
    given = [option_flag(name) for name in NAMES if name in request.options]
    path, word = source.origin.path, format_option(request.form)
    if given:
        raise BadRequest(
            f"{path} is {word} already and keeps its param groups; leave {' and '.join(given)} out"
        )
    options = request.writing
    done = plan_reshard(
        source,
        request.destination,
        replace(options, world_size=options.ranks(source), style=None),
        force=force,
        table=request.table,
    )
    if isinstance(done, Unchanged):
        return done
    said = f"{path} is {word} already; use zerotools reshard"
    return replace(done, notes=(said, *done.notes), request=request.text)


@dataclass(frozen=True)
class _Run:
    """A source checkpoint and the state of its training, in the form that the target needs.

    `settled` are notes of the source that no longer apply.
    """

    checkpoint: Checkpoint
    training: TrainingState
    notes: Sequence[str] = ()
    settled: Sequence[str] = ()


def _order(source: Checkpoint, request: _Request, given: Mapping[str, Path]) -> AskedOrder | None:
    if ORDER not in request.options:
        return None
    from zerotools.ops.resume_from_other_program.parameter_order_option import asked_order

    return asked_order(str(request.options[ORDER]), source, given)


def _leaves_stage_0(source: Checkpoint, request: _Request) -> bool:
    """Return whether the request gives a ZeRO stage or a DeepSpeed configuration for a run without
    ZeRO. Such a run cannot be resharded, because its optimizer state has no parameter names."""
    if optimizer_roles(source) or not {"stage", "ds_config"} & request.options.keys():
        return False
    return formats.format_of(source, request.table).numbered_state(source) is not None


def _with_state(source: Checkpoint, request: _Request) -> tuple[Checkpoint, TrainingState]:
    """Return the source and its training state. If the target can hold optimizer state, numbered
    optimizer state, which `read` leaves out, is added to the source and to the training state.
    """
    training = formats.training_of(source, request.table)
    if not request.form.writes_state:
        return source, training
    try:
        found = with_numbered_state(source, training, request.table)
    except Unsupported:
        if not request.options.get(WEIGHTS_ONLY):
            raise
        found = None
    return (source, training) if found is None else found


def _named(
    source: Checkpoint, training: TrainingState, request: _Request, order: AskedOrder | None
) -> _Run:
    """Return the source and its training state, with the user's hyperparameters. Numbered optimizer
    state gets parameter names if they are known.

    Raises:
        BadRequest: the target needs parameter names, and they are not known.
    """
    options = request.options
    # Read now, so that a lost number is refused even if the target cannot hold it.
    training = replace(training, scalars=dict(training.scalars))
    settled: tuple[str, ...] = ()
    if request.form.writes_state and not options.get(WEIGHTS_ONLY):
        _refuse_lost_optimizer(source, request)
    names, said = None if order is None else order.names, list[str]()
    if options.get(WEIGHTS_ONLY):
        source, training = without_optimizer(source, training)
        settled = (ORDER_UNKNOWN, NAMED_BY_SHAPE, NUMBERED_STATE)
    elif training.unnamed and order is not None:
        named, said = with_names_of_model(source, training, order)
        source, training, names = named.checkpoint, named.training, None
        settled = (ORDER_UNKNOWN, NUMBERED_STATE)
    elif training.unnamed and (proved := with_proved_names(source, training)) is not None:
        source, training = proved.named.checkpoint, proved.named.training
        settled, said = (NUMBERED_STATE,), [proved.known_by]
    elif training.unnamed and _needs_names(source, training, request):
        from zerotools.ops.resume_from_other_program.parameter_order_option import how_to_name

        raise BadRequest(
            f"{how_to_name(source, source.model_sidecars)}; or use --weights-only, to convert "
            "only the weights"
        )
    elif training.unnamed:
        settled, said = (NUMBERED_STATE,), [ORDER_UNKNOWN] if optimizer_roles(source) else []
    given = RequestedHyperparameters.of(
        options, options.get("ds_config", training.ds_config), names
    )
    training, notes = with_missing_options(source, training, given)
    notes = [*said, *notes]
    notes = notes if order is None else [*notes, record_of(order, training).sentence()]
    return _Run(source, training, notes, settled)


def _needs_names(source: Checkpoint, training: TrainingState, request: _Request) -> bool:
    """Return whether the output needs parameter names for the optimizer state. Its format or its
    layout may need them, or a weight that comes from an unnamed master."""
    if request.form.names_state or request.mapping is not None:
        return True
    return any(key.role == "param" and key.name in training.unnamed for key in source.tensors)


def _refuse_lost_optimizer(source: Checkpoint, request: _Request) -> None:
    """Raise BadRequest if there are optimizer files next to the model that zerotools cannot read.
    The output would lose their state."""
    form = formats.format_of(source, request.table)
    if not form.is_weights_format or not source.origin.path.is_dir():
        return
    names = sorted(optimizer_files(source.root))
    if names and not optimizer_roles(source) and source.optimizer_checkpoint is None:
        raise BadRequest(
            f"{source.origin.path} has {', '.join(names)}, which cannot be read as the state of "
            "one optimizer; pass --weights-only to convert only the weights"
        )


def _left_out(source: Checkpoint) -> list[Dropped]:
    return [Dropped(role, "left out by --weights-only") for role in optimizer_roles(source)]


def _weights_only(source: Checkpoint, request: _Request) -> list[str]:
    form = request.form
    if form.says_weights or not form.writes_state or optimizer_roles(source):
        return []
    if request.options.get(WEIGHTS_ONLY):
        return ["weights only: the optimizer starts from zero"]
    path = source.origin.path
    return [f"weights only: {path} has no optimizer state, so the optimizer starts from zero"]


def _one_rank(source: Checkpoint, request: _Request) -> list[str]:
    """Return a list with one note if neither the user nor the source gives a number of ranks, so
    that the output is for one rank. Else the list is empty."""
    is_known = "world_size" in request.options or source.origin.world_size is not None
    if is_known or "world_size" not in request.form.write_options:
        return []
    return [
        (
            f"the output is written for 1 rank, because {source.origin.path} does not record the "
            "number of ranks; --world-size N writes it for N ranks"
        )
    ]


def with_names_of_model(
    checkpoint: Checkpoint, training: TrainingState, order: AskedOrder
) -> tuple[NamedCheckpoint, list[str]]:
    """Return `checkpoint` with the names in `order` for its numbered optimizer state, and notes.

    In memory, transformers joins the experts of a layer, and models for images or audio have other
    names. An optimizer has these names, but `save_pretrained` writes the layout of the Hub. So the
    weights get the layout in memory if their names in the files do not match.

    Raises:
        BadRequest: as `with_names`.
    """
    try:
        return with_names(checkpoint, training, order), []
    except BadRequest:
        found = None if order.shapes is None else _in_memory(checkpoint, training, order)
        if found is None:
            raise
    laid_out, layout = found
    note = f"the weights get the layout {layout}, which they had in the memory of the optimizer"
    return with_names(laid_out, training, order), [note]


def _in_memory(
    checkpoint: Checkpoint, training: TrainingState, order: AskedOrder
) -> tuple[Checkpoint, str] | None:
    """Return the checkpoint with its weights in a layout that has the names in `order`, and the
    name of the layout; None if there is no such layout.
    """
    from zerotools.maps.hub_tensor_names import FUSED
    from zerotools.maps.transformers_names import MEMORY
    from zerotools.ops.weights.convert_layout import MapRequest, mapped_checkpoint

    weights = {
        key: tensor
        for key, tensor in checkpoint.tensors.items()
        if key.role in WEIGHT_ROLES and key.name not in training.unnamed
    }
    state = {key: t for key, t in checkpoint.tensors.items() if key not in weights}
    alone = replace(checkpoint, tensors=weights)
    for layout in (MEMORY, FUSED):
        with suppress(ZerotoolsError):
            made = mapped_checkpoint(alone, MapRequest(to=layout)).checkpoint
            if {*(key.name for key in made.tensors), *made.aliases}.issuperset(order.names):
                return replace(made, tensors={**made.tensors, **state}), layout
    return None
