"""Commands that a user can run next with a checkpoint of another program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from zerotools.core.adapter_tensor_names import adapter_names, is_adapter_checkpoint
from zerotools.formats import FORMATS, FormatTable, format_of
from zerotools.io.files.directory_entries import names_if_readable
from zerotools.io.files.open_source import RemotePath
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.ops.inspection.inspect import Inspection

_MOST_NAMED = 8
_LEVELS = 3
_MARK = r"[._-]?(?:te?mp|partial|incomplete|staging|unfinished|part\d*|node\d*|host\d*|rank\d*)"


def next_commands(
    inspection: Inspection,
    path: Path,
    *,
    wraps_models: bool = False,
    says_scale: bool = True,
    given: Sequence[str] = (),
    table: FormatTable = FORMATS,
) -> tuple[str, ...]:
    """Return commands for the checkpoint at `path`, the most likely first; empty if the checkpoint
    is already a model, or if no command applies.

    Args:
        wraps_models: the program prefixes all tensor names with the name of an attribute.
        says_scale: a file of the run records the `lora_alpha` of its adapters.
        given: the options that selected the checkpoint.
    """
    checkpoint = inspection.checkpoint
    origin = checkpoint.origin
    if origin.refusal is not None or origin.question is not None:
        return ()
    source = shlex.join([str(path), *given])
    named = path if path.name not in ("", "..") else path.resolve()
    name = named.name or "run"
    model = shlex.quote(f"{name}-model")
    if inspection.has_lost_files:
        parts = parts_elsewhere(inspection)
        if parts:
            whole = shlex.quote(f"{parts[0].name}-whole")
            return (f"zerotools gather {shlex.join(map(str, parts))} {whole}",)
        return (f"zerotools salvage {source} {model}",)
    if any(problem.prevents_output and problem.file is None for problem in checkpoint.problems):
        return ()
    unread = [p.tensor for p in checkpoint.problems if p.is_unread and p.tensor is not None]
    if len(unread) > _MOST_NAMED:
        return (f"zerotools salvage {source} {model}",)
    form = format_of(checkpoint, table)
    without = "".join(f" --exclude {shlex.quote(name)}" for name in unread)
    if is_model(inspection, table) and unread:
        return (f"zerotools consolidate {source} {model}{without}",)
    if is_model(inspection, table):
        return ()
    keys = [key for key in checkpoint.tensors if key.role in ("param", "param16", "buffer")]
    options = " --map-to hf --config-dir MODEL_DIR" if form.needs_map else ""
    if adapter_names(keys):
        adapter = shlex.quote(f"{name}-adapter")
        scale = "" if says_scale else " --adapter-config ADAPTER_DIR"
        alone = f"zerotools consolidate {source} {adapter} --adapter-only{options}{scale}"
        merged = f"zerotools consolidate {source} {model}"
        if is_adapter_checkpoint(keys):
            return alone, f"{merged} --base BASE_DIR{scale}"
        return merged + options + scale, alone
    if wraps_models and (prefix := _common_prefix(inspection)):
        options += f" --strip-prefix {shlex.quote(prefix)}"
    commands = [f"zerotools consolidate {source} {model}{options}{without}"]
    divisor = form.ranks_divisor(checkpoint) if inspection.run.has_optimizer else 0
    half = (origin.world_size or 1) // 2
    if divisor and (ranks := half - half % divisor):
        resumable = shlex.quote(f"{name}-{ranks}-ranks")
        commands.append(f"zerotools reshard {source} {resumable} --world-size {ranks}")
    return tuple(commands)


def parts_elsewhere(inspection: Inspection) -> tuple[Path, ...]:
    """Find similarly named directories next to the checkpoint that contain its missing files. For
    example, after an interrupted rename the files of other nodes may be in `tmp-checkpoint-100`.

    Return the checkpoint's directory, then the directories found. If none is found, return ().
    """
    root = inspection.checkpoint.root
    if isinstance(root, RemotePath) or not inspection.missing:
        return ()
    for own in [root, *root.parents][:_LEVELS]:
        if own.name in ("", ".."):
            break
        inside = root.relative_to(own)
        like = re.compile(rf"({_MARK}[._-]?)?{re.escape(own.name)}([._-]?{_MARK})?")
        beside = sorted(filter(like.fullmatch, names_if_readable(own.parent) - {own.name}))
        found = [
            own.parent / name
            for name in beside
            if any((own.parent / name / inside / file).is_file() for file in inspection.missing)
        ]
        if found:
            return (own, *found)
    return ()


def _common_prefix(inspection: Inspection) -> str:
    """Return the text before and including the first dot, such as `model.`, if it is the same in
    all names of weights, else ""."""
    names = [key.name for key in inspection.checkpoint.tensors if key.role == "param"]
    first = {name.partition(".")[0] for name in names}
    has_parts = all(name.count(".") > 1 for name in names)
    return f"{first.pop()}." if len(first) == 1 and has_parts else ""


def is_model(inspection: Inspection, table: FormatTable = FORMATS) -> bool:
    """Return whether the checkpoint is a Hugging Face model, without an adapter to merge."""
    checkpoint = inspection.checkpoint
    form = format_of(checkpoint, table)
    beside = checkpoint.model_sidecars.get(CONFIG)
    is_exported = form.is_exported and checkpoint.origin.world_size is None
    is_beside = beside is not None and beside.parent == checkpoint.root
    return is_exported and is_beside and not adapter_names(checkpoint.tensors)
