"""Checks that a thinned copy is whole, and every tensor in it is the checkpoint's.

`verify` checks the copy, so all kept data; removed data is not checked. Tensors in files that were
written again are compared with the checkpoint by their digests; the other files are the same files
under another name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.counts import counted
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.flat_ranges import chunk_locations
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.inspection.inspect import prove
from zerotools.ops.thinning.thin_plan import ThinPlan
from zerotools.ops.verification.against import Against, beside
from zerotools.ops.verification.checkpoint_files import files_of
from zerotools.ops.verification.digests import digests_of
from zerotools.ops.verification.findings import Soundness
from zerotools.ops.verification.verify import prepare, verify

_MAX_NAMED = 3
NOTHING_CHANGED = "nothing was changed"


@dataclass(frozen=True)
class CheckedCopy:
    """`compared` tensors lie in files that were written again, and have the digests of the
    checkpoint's. `soundness` is the verdict of `verify`, and `findings` are its problems, if these
    were accepted."""

    tensors: int
    compared: int
    soundness: Soundness
    findings: tuple[str, ...] = ()


def check_copy(
    plan: ThinPlan,
    copy: Path,
    written: Collection[str],
    *,
    force: bool,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> CheckedCopy:
    """Check the thinned copy of `plan.subject`; the files `written` are new. With `force`, damage
    that the checkpoint also has is accepted.

    Raises:
        BadFile: it is damaged, or a tensor is not the checkpoint's.
    """
    given = prepare(
        copy,
        layout=plan.options.layout,
        section=plan.options.section,
        table=plan.table,
    )
    _check_keys(plan, given.checkpoint)
    found = verify(given, other=_sidecar(plan, force), budget=budget, on_bytes=on_bytes)
    messages = tuple(finding.message for finding in found.findings)
    if messages and not force:
        more = f" (and {len(messages) - 1} more)" if messages[1:] else ""
        raise BadFile(
            f"{plan.subject} has problems, and {NOTHING_CHANGED}: {_named(plan, copy, messages[0])}"
            f"{more}; --force thins it all the same"
        )
    compared = _compare(plan, given.checkpoint, copy, written, budget, force=force)
    tensors = len(given.checkpoint.tensors)
    return CheckedCopy(tensors, compared, found.verdict, messages)


def _named(plan: ThinPlan, copy: Path, message: str) -> str:
    """Return a message on the copy, with the names that the files have in the checkpoint."""
    return message.replace(str(copy), str(plan.subject))


def _sidecar(plan: ThinPlan, force: bool) -> Against | None:
    """Return the manifest of digests next to the checkpoint, which also describes the kept data."""
    try:
        return beside(files_of(plan.source, plan.table))
    except (BadFile, Unsupported):
        if force:
            return None
        raise


def _check_keys(plan: ThinPlan, found: Checkpoint) -> None:
    expected = plan.thinning.kept
    wrong = [key for key in expected if key not in found.tensors]
    wrong += [key for key in found.tensors if key not in expected]
    wrong += [
        key
        for key, held in expected.items()
        if key in found.tensors and _kind(found.tensors[key]) != _kind(plan.source.tensors[held])
    ]
    if wrong:
        raise BadFile(
            f"{plan.subject}: {_some(wrong)} would not be there as before, so {NOTHING_CHANGED}; "
            "please report it"
        )


def _kind(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape


def _compare(
    plan: ThinPlan,
    found: Checkpoint,
    copy: Path,
    written: Collection[str],
    budget: MemoryBudget,
    *,
    force: bool,
) -> int:
    lost = set(prove(found).incomplete) if force else set()
    new = [key for key in _in_files(found, copy, written) if key not in lost]
    own = plan.thinning.kept
    after = digests_of(found, new, budget, casts=False)
    before = digests_of(plan.source, [own[key] for key in new], budget, casts=False)
    changed = [key for key in new if after[key].digest != before[own[key]].digest]
    if changed:
        raise BadFile(
            f"{plan.subject}: {_some(changed)} would have other values than before, so "
            f"{NOTHING_CHANGED}: the checkpoint or the disk is damaged; verify it"
        )
    return len(new)


def _in_files(found: Checkpoint, copy: Path, written: Collection[str]) -> Iterator[Key]:
    """Yield the tensors with a part in a file that was written."""
    new = {copy / name if name else copy for name in written}
    for key, tensor in found.tensors.items():
        if any(found.root.absolute() / file in new for file, _ in chunk_locations(tensor)):
            yield key


def _some(keys: list[Key]) -> str:
    more = f" and {counted(len(keys) - _MAX_NAMED, 'other tensor')}" if keys[_MAX_NAMED:] else ""
    return ", ".join(map(str, keys[:_MAX_NAMED])) + more
