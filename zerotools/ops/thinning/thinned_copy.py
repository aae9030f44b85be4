"""Make the new directory of a thinned checkpoint, and check it.

Unchanged files get a second name in the new directory (a hard link), or are copied if the file
system has no links. Changed files are written again. All files keep their modes, owners and times,
so that tools that sort checkpoints by age get the same order. Then `carry_out_verify` checks the
new directory. The digests of tensors in files that were written again are compared with those of
the checkpoint. A hard link needs no comparison.

The caller may be root, and the owner of the checkpoint may change it during the operation. So
modes, owners and times come from the entries that were recorded before. Otherwise the owner could
replace a file by a link to a file of root, and so become its owner.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.flat_ranges import chunk_locations
from zerotools.core.target import FilePlan
from zerotools.io.files.exclusive_directory import copy_owner
from zerotools.io.output.files_without_tensors import carried_file
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.execution.write_files import complete_file, create_file
from zerotools.ops.inspection.inspect import prove_complete
from zerotools.ops.thinning.directory_snapshot import Entries
from zerotools.ops.thinning.thin_plan import ThinPlan
from zerotools.ops.verification.checkpoint_files import files_of
from zerotools.ops.verification.compare_manifest import Against, adjacent_manifest
from zerotools.ops.verification.tensor_digests import digests_of
from zerotools.ops.verification.verification_result import Soundness
from zerotools.ops.verification.verify import carry_out_verify, prepare_verify
from zerotools.runs.job_checkpoint_file_names import MANIFEST
from zerotools.runs.manifest import rewrite_manifest

_LINKED_AT_MOST = 65_000


def build_thinned_copy(
    plan: ThinPlan,
    copy: Path,
    *,
    links: bool,
    workers: int,
    flush: Callable[[Path], object],
    on_bytes: Callable[[int], None] = lambda _: None,
) -> frozenset[str]:
    """Make the thinned copy of `plan.subject` at `copy`, and return the names of the written files.
    Hard links to files of the checkpoint are not among them. `flush` is called with each written
    file when it is complete.

    Raises:
        BadRequest: the disk is full, or the owner of a file cannot be kept.
        BadFile: a file of the checkpoint is truncated, or changed during the operation.
    """
    directories = _directories(plan)
    if plan.subject.is_dir():
        copy.mkdir()
    for name in directories:
        (copy / name).mkdir()
    written = _Written(plan, copy, links, flush, on_bytes)
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(partial(written.make, name)) for name in _names(plan)]:
            done.result()
    if plan.has_manifest:
        rewrite_manifest(copy, plan.subject, gone=plan.removed, changed=plan.rewritten.keys())
        _as_before(plan.subject / MANIFEST, plan.entries.status[MANIFEST], copy / MANIFEST)
        written.names.add(MANIFEST)
    for name in reversed(directories):
        _as_before(plan.subject / name, plan.entries.status[name], copy / name)
    _as_before(plan.subject, plan.entries.status[""], copy)
    return frozenset(written.names)


class _Written:
    """Makes the files of the copy. `names` has those that were written and not linked. Several
    threads may call `make`."""

    def __init__(
        self,
        plan: ThinPlan,
        copy: Path,
        links: bool,
        flush: Callable[[Path], object],
        on_bytes: Callable[[int], None],
    ) -> None:
        self._plan = plan
        self._copy = copy
        self._links = links
        self._flush = flush
        self._on_bytes = on_bytes
        self.names: set[str] = set()

    def make(self, name: str) -> None:
        before, after = self._plan.subject / name, self._copy / name
        file_plan = self._plan.rewritten.get(name)
        status = self._plan.entries.status.get(name)
        if file_plan is None:
            if status is not None and stat.S_ISLNK(status.st_mode):
                after.symlink_to(before.readlink())
                return
            if self._links and status is not None and status.st_nlink < _LINKED_AT_MOST:
                after.hardlink_to(before)
                self._plan.entries.check_same(name, after)
                return
            file_plan = carried_file(before)
        self._write(after, file_plan)
        self.names.add(name)
        if status is None:
            _like_the_others(self._plan.entries, after)
        elif not stat.S_ISLNK(status.st_mode):
            _as_before(before, status, after)
        self._flush(after)

    def _write(self, path: Path, file_plan: FilePlan) -> None:
        create_file(path, file_plan, self._plan.sources)
        complete_file(path, file_plan)
        self._on_bytes(file_plan.size)


def _names(plan: ThinPlan) -> list[str]:
    """Return the files and links of the copy, the largest first, without a job's manifest."""
    names = {*plan.entries.files(), *plan.rewritten} - plan.removed
    names -= {MANIFEST} if plan.has_manifest else set()
    return sorted(names, key=lambda name: (-_size(plan, name), name))


def _size(plan: ThinPlan, name: str) -> int:
    made = plan.rewritten.get(name)
    return plan.entries.size_of(name) if made is None else made.size


def _directories(plan: ThinPlan) -> list[str]:
    """Return the directories of the copy. A directory is left out if the removed files were all its
    files."""
    before = {parent for name in plan.entries.files() for parent in _above(name)}
    stays = {*plan.entries.files(), *plan.rewritten} - plan.removed
    after = {parent for name in stays for parent in _above(name)}
    return [name for name in plan.entries.directories() if name in after or name not in before]


def _above(name: str) -> list[str]:
    return [parent.as_posix() for parent in PurePosixPath(name).parents]


def _like_the_others(entries: Entries, made: Path) -> None:
    """Give a new file the owner of the checkpoint, and the time of its newest file."""
    _own(entries.root, entries.status[""], made)
    newest = entries.newest()
    os.utime(made, (newest, newest))


def _as_before(before: Path, status: os.stat_result, after: Path) -> None:
    """Give the entry `after` the mode, owner and times in `status`, and the extended attributes of
    `before`. A file gets no setuid or setgid bit."""
    _own(before, status, after)
    with suppress(OSError):  # as of a file system without them
        _take_attributes(before, after)
    mode = stat.S_IMODE(status.st_mode)
    after.chmod(mode if stat.S_ISDIR(status.st_mode) else mode & 0o777)
    os.utime(after, ns=(status.st_atime_ns, status.st_mtime_ns))


def _take_attributes(before: Path, after: Path) -> None:
    """Copy the user attributes and access control lists of a file. Security attributes are not
    copied, because the system sets them.
    """
    for name in os.listxattr(before, follow_symlinks=False):
        if name.startswith(("user.", "system.posix_acl_")):
            value = os.getxattr(before, name, follow_symlinks=False)
            os.setxattr(after, name, value, follow_symlinks=False)


def _own(before: Path, status: os.stat_result, after: Path) -> None:
    try:
        copy_owner(status, after)
    except OSError as error:
        raise BadRequest(
            f"{before} belongs to uid {status.st_uid} and gid {status.st_gid}, and the new file "
            f"cannot get this owner ({error.strerror}); thin the checkpoint as this user"
        ) from None


_MAX_NAMED = 3
NOTHING_CHANGED = "nothing was changed"


@dataclass(frozen=True)
class CheckedCopy:
    """The result of checking a thinned copy.

    `compared` is the number of tensors in rewritten files. They are equal to those of the
    checkpoint. `soundness` is the verdict of `carry_out_verify`, and `findings` are the problems
    that `force` accepted.
    """

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
    """Check the thinned copy of `plan.subject`. `written` are the names of its rewritten files.
    With `force`, damage that the checkpoint also has is accepted.

    Raises:
        BadFile: the copy is damaged, or a tensor differs from that of the checkpoint.
    """
    given = prepare_verify(
        copy,
        layout=plan.options.layout,
        section=plan.options.section,
        table=plan.table,
    )
    _check_keys(plan, given.checkpoint)
    found = carry_out_verify(given, other=_sidecar(plan, force), budget=budget, on_bytes=on_bytes)
    messages = tuple(finding.message for finding in found.findings)
    if messages and not force:
        more = f" (and {len(messages) - 1} more)" if messages[1:] else ""
        raise BadFile(
            f"{plan.subject} has problems, and {NOTHING_CHANGED}: "
            f"{_named(plan, copy, messages[0])}{more}; --force thins it anyway"
        )
    compared = _compare(plan, given.checkpoint, copy, written, budget, force=force)
    tensors = len(given.checkpoint.tensors)
    return CheckedCopy(tensors, compared, found.verdict, messages)


def _named(plan: ThinPlan, copy: Path, message: str) -> str:
    """Replace the path of the copy in `message` by that of the checkpoint."""
    return message.replace(str(copy), str(plan.subject))


def _sidecar(plan: ThinPlan, force: bool) -> Against | None:
    """Return the manifest next to the checkpoint, which has the digests of the kept data too.
    Return None if there is no manifest, or a damaged one and `force`."""
    try:
        return adjacent_manifest(files_of(plan.source, plan.table))
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
            f"{plan.subject}: {_some(wrong)} would be missing, new or different, so "
            f"{NOTHING_CHANGED}; please report it"
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
    lost = set(prove_complete(found).incomplete) if force else set()
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
    """Yield the tensors that have a part in one of the files `written`."""
    new = {copy / name if name else copy for name in written}
    for key, tensor in found.tensors.items():
        if any(found.root.absolute() / file in new for file, _ in chunk_locations(tensor)):
            yield key


def _some(keys: list[Key]) -> str:
    more = f" and {count_text(len(keys) - _MAX_NAMED, 'other tensor')}" if keys[_MAX_NAMED:] else ""
    return ", ".join(map(str, keys[:_MAX_NAMED])) + more
