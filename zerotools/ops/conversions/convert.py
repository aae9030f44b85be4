"""`zerotools convert`: the same checkpoint in another format, as much of it as that can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Target
from zerotools.core.dropping import LOOSE, WEIGHTS, lost_attributes
from zerotools.core.errors import BadRequest
from zerotools.core.training import TrainingState
from zerotools.io.files.regular import read_user_file
from zerotools.io.files.sources import recording
from zerotools.io.output.plain_files import carried_file
from zerotools.ops.conversions.conversion import Conversion, Unchanged, with_target_sources
from zerotools.ops.conversions.optimizer_options import (
    NAMES,
    RequestedHyperparameters,
    completed,
    flag,
)
from zerotools.ops.conversions.reshard import resharded
from zerotools.ops.conversions.targets import TARGETS, ConversionRequest, OutputFormat, settings_of
from zerotools.ops.conversions.world_size import check_world_size
from zerotools.ops.sidecars.left_behind import left_behind, undeclared_losses
from zerotools.ops.sidecars.model_sidecar_choice import (
    lacking_config,
    requested_sidecars,
    with_sidecars,
)
from zerotools.ops.weights.duplicates import check_masters

_FLAGS = {"max_shard_bytes": "--max-shard-size"}


def prepare(
    path: Path,
    destination: Path,
    to: str,
    options: Mapping[str, Any],
    *,
    tag: str | None = None,
    layout: Path | None = None,
    section: str | None = None,
    config_dir: Path | None = None,
    force: bool = False,
) -> Conversion | Unchanged:
    """Lay the checkpoint at `path` out in the format `to`; nothing is written.

    `options` are those that the user gave, by name. `config_dir` has config.json and the
    tokenizer, for sources that lack them. A checkpoint that is of that format already is
    resharded, with all that it holds; with `force` also where nothing changes. `section` takes one
    of several models.

    Raises:
        BadRequest: `path` does not exist; an option that the target does not take; or what the
            target needs is known from nowhere.
        BadFile: it is not a checkpoint, or its metadata is damaged.
        Unsupported: the target cannot hold its weights.
    """
    form = TARGETS[to]
    _check_options(form, options)
    with recording() as sources:
        source = formats.read_any(path, tag=tag, layout=layout, section=section)
        formats.require_readable(source)
        request = repr(
            (
                to,
                sorted(options.items()),
                tag,
                layout and read_user_file(layout),
                section,
                config_dir,
            )
        )
        whole = section is None and "style" not in options
        done = _prepare(
            source, destination, form, options, config_dir, request, force=force, keeps_all=whole
        )
    return done if isinstance(done, Unchanged) else replace(done, stamps=sources.stamps)


def _prepare(
    source: Checkpoint,
    destination: Path,
    form: OutputFormat,
    options: Mapping[str, Any],
    config_dir: Path | None,
    request: str,
    *,
    force: bool,
    keeps_all: bool,
) -> Conversion | Unchanged:
    given = {} if config_dir is None else requested_sidecars(config_dir)
    source = replace(source, companions={**source.companions, **given})
    found: list[str] = []
    if not form.holds_state:
        source, found = with_sidecars(source, config_dir, {})
    wanted = ConversionRequest(source, TrainingState(), destination, options)
    if form.reshards and source.origin.format == form.origin and keeps_all:
        done = _resharded(form, wanted, request, force=force)
        if isinstance(done, Unchanged):
            return done
        return replace(done, target=_with_companions(done.target, given))
    formats.require_model(source)
    check_masters(source)
    training, notes = _training(source, options)
    target = _with_companions(form.lay_out(replace(wanted, training=training)), given)
    beside, left = left_behind(source, target)
    known = {dropped.what for dropped in target.dropped}
    more = [
        *undeclared_losses(source, training.scalars, target),
        *(d for d in beside if d.what not in known),
    ]
    target = replace(target, dropped=(*target.dropped, *more, *lost_attributes(source)))
    notes = [*source.origin.notes, *notes, *target.notes, *_weights_only(form, source), *left]
    lacking = None if form.holds_state else lacking_config(source, target)
    return Conversion(
        with_target_sources(source, target), target, (*notes, *found), request, lacking=lacking
    )


def _check_options(form: OutputFormat, options: Mapping[str, Any]) -> None:
    useless = [_FLAGS.get(name, flag(name)) for name in options if name not in form.options]
    if useless:
        raise BadRequest(
            f"--to {form.word} does not take {' and '.join(sorted(useless))}; leave it out"
        )
    if "world_size" in options:
        check_world_size(options["world_size"])


def _with_companions(target: Target, given: Mapping[str, Path]) -> Target:
    """With the files that the user named, also where the source's own would be carried along."""
    files = dict(target.files)
    for name, path in given.items():
        plan = files.get(name)
        if plan is None or any(part.source != path for part in plan.carried):
            files[name] = carried_file(path)
    sizes = {name: plan.size for name, plan in files.items()}
    return replace(target, files=files, checkpoint=replace(target.checkpoint, files=sizes))


def _resharded(
    form: OutputFormat, wanted: ConversionRequest, request: str, *, force: bool
) -> Conversion | Unchanged:
    """The same format: everything of the checkpoint is kept."""
    given = [flag(name) for name in (*NAMES, "order") if name in wanted.options]
    path = wanted.source.origin.path
    if given:
        raise BadRequest(
            f"{path} is {form.word} already and keeps its param groups: leave "
            f"{' and '.join(given)} out"
        )
    done = resharded(
        wanted.source,
        wanted.destination,
        world_size=wanted.world_size(),
        settings=settings_of(wanted.options),
        force=force,
    )
    if isinstance(done, Unchanged):
        return done
    said = f"{path} is {form.word} already; use zerotools reshard"
    return replace(done, notes=(said, *done.notes), request=request)


def _training(source: Checkpoint, options: Mapping[str, Any]) -> tuple[TrainingState, list[str]]:
    """What is known of the run, completed with the user's hyperparameters."""
    training = formats.training_of(source)
    given = RequestedHyperparameters.of(options, options.get("ds_config", training.ds_config))
    return completed(source, training, given)


def _weights_only(form: OutputFormat, source: Checkpoint) -> list[str]:
    weights = (*WEIGHTS, "param16", LOOSE)
    said = form.says_weights or not form.holds_state
    if said or any(key.role not in weights for key in source.tensors):
        return []
    path = source.origin.path
    return [f"weights only: {path} has no optimizer state, so the optimizer starts from zero"]
