"""The commands verify, diff, salvage and thin as functions: these return what those print."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.errors import BadRequest
from zerotools.io.stores.addresses import path_of

if TYPE_CHECKING:
    from zerotools.ops.comparison.result import CheckpointDiff
    from zerotools.ops.salvage.salvage_plan import Salvage
    from zerotools.ops.thinning.in_place import Thinned
    from zerotools.ops.thinning.thin_plan import ThinPlan
    from zerotools.ops.verification.findings import Verification


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    role: str | Sequence[str] = (),
    include: str | Sequence[str] = (),
    rename: str | Sequence[str] = (),
    tolerance: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    tag: str | None = None,
    layout: str | os.PathLike[str] | None = None,
    section: str | None = None,
) -> CheckpointDiff:
    """Compare two checkpoints of any format; the options are those of the command `zerotools diff`,
    and each may be one string or several. Neither is merged, and memory stays below 256 MB. With
    `adapter`, `a` is compared with the sum of the base model `b` and this PEFT adapter.

    `is_equal`, `tensors`, `run`, `worst(most)` and `to_json()` of the result say what was found.

    Raises:
        BadRequest: one does not exist, an option is wrong, or nothing is left to compare.
        BadFile: one is not a checkpoint, or its metadata is damaged, or it changed while it was
            read. Tensors that cannot be read are told in the result.
        Unsupported: one is in a format that is not read.
    """
    from zerotools.ops.comparison import checkpoint_diff as comparison

    options = comparison.DiffOptions(
        roles=_several(role),
        include=_several(include),
        rename=_several(rename),
        tolerance=tolerance,
        adapter=None if adapter is None else path_of(adapter),
        tag=tag,
        layout=None if layout is None else Path(layout),
        section=section,
    )
    return comparison.diff(path_of(a), path_of(b), options)


def verify(
    path: str | os.PathLike[str],
    *,
    tag: str | None = None,
    layout: str | os.PathLike[str] | None = None,
    section: str | None = None,
    against: str | os.PathLike[str] | None = None,
    write_manifest: str | os.PathLike[str] | bool = False,
    fast: bool = False,
    workers: int | None = None,
    max_memory: int = 256 * 2**20,
) -> Verification:
    """Check whether the checkpoint at `path` is whole, as the command `verify` does: `verdict` of
    what is returned is "whole", "unchecked" or "faulty", `findings` are sentences. With `fast` no
    tensor data is read. `against` is a manifest or another checkpoint to compare with.
    `write_manifest` writes the digests of what is there, to that file, or with True beside the
    checkpoint, if nothing is wrong. `max_memory` is in bytes, for the buffers of all `workers`
    (threads).

    Raises:
        BadRequest: there is nothing at `path`, it has no such tag or section, or the manifest is of
            another model.
        BadFile: it is not a checkpoint, or so damaged that its tensors are not known.
        Unsupported: it is in a format that is not read.
    """
    from zerotools.ops.execution.workers import MemoryBudget
    from zerotools.ops.verification import against as comparing
    from zerotools.ops.verification import verify as verification
    from zerotools.ops.verification.manifests import digest_manifest

    if fast and (against is not None or write_manifest):
        raise BadRequest("fast=True reads no data, and a manifest needs it; leave one of them out")
    rules = None if layout is None else Path(layout)
    given = verification.prepare(path_of(path), tag=tag, layout=rules, section=section)
    budget = MemoryBudget(max_memory) if workers is None else MemoryBudget(max_memory, workers)
    other = (
        None
        if against is None
        else comparing.against(path_of(against), budget, verified=given.files.on_disk)
    )
    digests = write_manifest is not False
    found = verification.verify(given, fast=fast, other=other, digests=digests, budget=budget)
    if found.manifest is not None:
        beside = digest_manifest.sidecar_of(given.files)
        file = beside if isinstance(write_manifest, bool) else Path(write_manifest)
        digest_manifest.write_digest_manifest(found.manifest, file, given.files)
    return found


def salvage(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    fill_from: str | os.PathLike[str] | None = None,
    dtype: str = "auto",
    rename: str | Sequence[str] = (),
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    format: str = "safetensors",
    config_dir: str | os.PathLike[str] | None = None,
    tag: str | None = None,
    layout: str | os.PathLike[str] | None = None,
    section: str | None = None,
    dry_run: bool = False,
    overwrite: bool = False,
    max_memory: int = 2**30,
) -> Salvage:
    """Export the weights that are whole of the damaged checkpoint at `path` into the directory
    `out`, as the command `salvage` does, whose options these are. `is_complete` of what is returned
    says whether that is every weight, `left_out` names the others with the reason,
    `examined.holes` has the boxes that are lost by tensor, and `filled` what is from `fill_from`;
    where nothing is whole, nothing is written, and `conversion` is None. `max_memory` is in bytes.

    Raises:
        BadRequest: there is nothing at `path`, `out` exists, `fill_from` is of another model, or
            finite weights do not fit in the type.
        BadFile: it is no checkpoint, nothing says which tensors there are, or its files are of two
            saves.
        Unsupported: it is in a format that is not read.
    """
    from zerotools.ops.conversions.consolidate import refuse_overflow
    from zerotools.ops.execution.workers import MemoryBudget
    from zerotools.ops.salvage import examine, preparation, salvage_plan
    from zerotools.ops.uploading.destination import check_write, write

    options = salvage_plan.SalvageOptions(
        dtype=dtype,
        rename=_several(rename),
        include=_several(include),
        exclude=_several(exclude),
        format=format,
    )
    rules, other, config = (
        None if each is None else path_of(each) for each in (layout, fill_from, config_dir)
    )
    budget = MemoryBudget(max_memory)
    given = examine.prepare(path_of(path), tag=tag, layout=rules, section=section, stand_in=other)
    found = preparation.prepare_salvage(
        given, path_of(out), options, fill_from=other, config_dir=config, budget=budget
    )
    if found.conversion is not None:
        check_write(found.conversion, overwrite=overwrite)
        if not dry_run:
            write(found.conversion, budget=budget, overwrite=overwrite, check=refuse_overflow)
    return found


def plan_thin(
    path: str | os.PathLike[str],
    *,
    keep: str = "masters",
    tag: str | None = None,
    layout: str | os.PathLike[str] | None = None,
    section: str | None = None,
) -> ThinPlan:
    """What the command `thin` would do to the checkpoint at `path`; nothing is changed. `keep` is
    "masters" or "weights". `freed` of what is returned are the bytes that would be free, `dropped`
    those of each role that goes, `thinning.keep` what stays, `problems` what is wrong with it, and
    `has_work` says whether there is anything to drop. `thin` carries it out.

    Raises:
        BadRequest: there is nothing at `path`, it holds several checkpoints, or `keep` is another
            word.
        BadFile: it is not a checkpoint, or so damaged that its tensors are not known.
        Unsupported: its format cannot be thinned, or not this kind of it.
    """
    from zerotools.core.thinning import Keep
    from zerotools.formats.format import ReadOptions
    from zerotools.ops.thinning.thin_plan import prepare

    if keep not in [each.value for each in Keep]:
        raise BadRequest(f"keep={keep!r}: must be {' or '.join(map(repr, map(str, Keep)))}")
    rules = None if layout is None else Path(layout)
    return prepare(path_of(path), Keep(keep), ReadOptions(tag, rules, section))


def thin(
    plan: ThinPlan,
    *,
    force: bool = False,
    socket: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    max_memory: int = 256 * 2**20,
) -> Thinned:
    """Drop what `plan` says, in place: training cannot resume from what is left. Whatever stops it,
    the checkpoint is whole, as it was or thinned. The daemon at `socket` (by default at the usual
    place) is asked whether a job would resume from it; where none answers, `notes` of what is
    returned says that this was not checked. With `force` a checkpoint that has problems is thinned,
    too. `max_memory` is in bytes, for the buffers of all `workers` (threads).

    `checked` of what is returned is what `verify` says of the result and how many tensors were
    compared; it is None where there was nothing to drop.

    Raises:
        BadRequest: a job needs the checkpoint, something writes there, there is no room, or it
            cannot be exchanged.
        BadFile: it has problems, or changed since `plan` was made; nothing was changed.
        Unsupported: its file system cannot exchange two names in one step.
    """
    from zerotools.jobs.client.needed_checkpoints import NOT_CHECKED, NeedGuard
    from zerotools.ops.execution.workers import MemoryBudget
    from zerotools.ops.thinning import in_place

    guard = NeedGuard(None if socket is None else Path(socket))
    budget = MemoryBudget(max_memory) if workers is None else MemoryBudget(max_memory, workers)
    done = in_place.thin(plan, force=force, budget=budget, permit=guard.refuse)
    return done if guard.answers else replace(done, notes=(*done.notes, NOT_CHECKED))


def _several(words: str | Sequence[str]) -> Sequence[str]:
    return (words,) if isinstance(words, str) else words
