"""`zerotools verify`: check a checkpoint in this order: structure, bytes, copies, values,
manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Problem, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.training_state import TrainingState
from zerotools.formats import FORMATS, FormatTable, format_of, read_any, require_readable
from zerotools.io.files.source_stamps import Sources, record_source_path, recording_sources
from zerotools.io.files.tolerated_damage import tolerating_damage
from zerotools.io.numeric.compare_values import ValueCounts
from zerotools.ops.execution.output_part import OutputPart
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.completeness import lost_rank_sidecars
from zerotools.ops.inspection.inspect import inspect
from zerotools.ops.verification.checkpoint_files import (
    CheckpointFiles,
    FilesToScan,
    files_of,
    files_to_scan,
)
from zerotools.ops.verification.compare_manifest import (
    Against,
    Comparing,
    adjacent_manifest,
    compare_files,
)
from zerotools.ops.verification.digest_manifest import (
    DigestManifest,
    FileDigest,
    WrittenRecord,
    digested_tensors,
    written_record,
)
from zerotools.ops.verification.divide_checks import WHOLE, Portion, portion_of
from zerotools.ops.verification.file_scan import (
    NEVER_NEGATIVE,
    ClaimedBytes,
    FileScan,
    Record,
    claims_of,
    scan_files,
)
from zerotools.ops.verification.value_checks import is_mask, meaningless_scales, odd_values
from zerotools.ops.verification.values_stored_twice import (
    Difference,
    counts_of,
    differing_replicas,
    differing_weights,
)
from zerotools.ops.verification.verification_result import Check, Comparison, Finding, Verification
from zerotools.runs.job_checkpoint_file_names import MANIFEST

DEFAULT_MEMORY = 256 * 2**20


@dataclass(frozen=True)
class ToVerify:
    """A checkpoint with its metadata, the state of its files when they were read (`sources`), and
    the portion to verify. `cut` has a sentence for each file that is too short for its tensors."""

    checkpoint: Checkpoint
    files: CheckpointFiles
    sources: Sources
    table: FormatTable
    portion: Portion = WHOLE
    cut: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes_to_read(self) -> int:
        """The total size in bytes of the files in the portion."""
        own = (size for name, size in self.files.names.items() if self.portion.has_file(name))
        return sum(own)


def prepare_verify(
    path: Path,
    *,
    tag: str | None = None,
    layout: Path | None = None,
    section: str | None = None,
    table: FormatTable = FORMATS,
    part: OutputPart | None = None,
) -> ToVerify:
    """Read the metadata of the checkpoint at `path`, which may have any format. With `part`, only
    this part of the checkpoint will be verified.

    Raises:
        BadRequest: `path` does not exist, or has no such tag or section.
        BadFile: `path` is not a checkpoint, or is so damaged that its tensors are not known.
        Unsupported: zerotools does not read its format.
    """
    with recording_sources() as sources:
        read = partial(read_any, path, tag=tag, layout=layout, section=section, table=table)
        cut: Mapping[str, str] = {}
        try:
            checkpoint = read()
        except BadFile as error:
            checkpoint, cut = _read_cut(read, error)
        require_readable(checkpoint)
        files = files_of(checkpoint, table, _asked_directory(path, checkpoint))
        for name in files.names:
            record_source_path(files.base / name)
    portion = portion_of(checkpoint, files, part)
    return ToVerify(checkpoint, files, sources, table, portion, cut)


def _read_cut(read: Callable[[], Checkpoint], error: BadFile) -> tuple[Checkpoint, dict[str, str]]:
    """Return the checkpoint if its only damage is that files are too short for their tensors, and a
    sentence for each of these files. The tensors beyond their ends are incomplete.

    Raises:
        BadFile: `error`, if there is other damage.
    """
    try:
        with tolerating_damage() as damage:
            checkpoint = read()
    except BadFile:
        raise error from None
    ends = dict.fromkeys(checkpoint.files, 0)
    for tensor in checkpoint.tensors.values():
        for chunk in tensor.chunks:
            end = chunk.offset + chunk.extent(tensor.dtype)
            ends[chunk.file] = max(end, ends.get(chunk.file, 0))
    cut = {
        (checkpoint.root / n).absolute(): n
        for n, size in checkpoint.files.items()
        if ends[n] > size
    }
    if (
        damage.names
        or damage.unnamed
        or not damage.faults
        or not damage.faults.keys() <= cut.keys()
    ):
        raise error
    return checkpoint, {cut[path]: said for path, said in damage.faults.items()}


def _asked_directory(path: Path, checkpoint: Checkpoint) -> Path | None:
    """Return the directory `path` if one file directly in it is the checkpoint, else None. Other
    files in the directory, such as the optimizer's, are then checked too."""
    file = checkpoint.origin.path
    is_in_it = path.is_dir() and not file.is_dir() and file.parent.absolute() == path.absolute()
    return file.parent if is_in_it else None  # spelled as the tensors' files are


def carry_out_verify(
    given: ToVerify,
    *,
    fast: bool = False,
    other: Against | None = None,
    digests: bool = False,
    budget: MemoryBudget | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Verification:
    """Make all checks of the checkpoint, and return the findings. With `fast`, no tensor data is
    read.

    Without `fast`, the tensors are compared with the digests that an output of zerotools may
    contain, and with `other` (None: the manifest next to the checkpoint, if there is one). With
    `digests`, the result has a new manifest. `on_bytes` is called with the number of bytes that
    were read since its last call.

    Raises:
        BadRequest: the manifest belongs to another model.
    """
    assert not (fast and (other or digests)), "a manifest needs the data"
    assert not (digests and given.portion is not WHOLE), (
        "a manifest needs the whole checkpoint, not a part"
    )
    found = AllChecks(
        given.checkpoint,
        given.files,
        given.table,
        (budget or MemoryBudget(DEFAULT_MEMORY)).reading(given.checkpoint.root),
        given.portion,
    )
    found.cut(given.cut)
    found.structure()
    if not fast:
        record = found.record()
        other = other or found.sidecar(record)
        found.bytes(on_bytes, digests=digests or other is not None or record is not None)
        found.copies()
        found.meaning()
        found.compare_with_record(record)
        found.compare(other, on_bytes, digests=digests)
    found.changed(given.sources)
    return Verification(
        given.checkpoint,
        given.files,
        tuple({finding.message: finding for finding in found.findings}.values()),
        found.own_unchecked(),
        found.nonfinite,
        fast,
        0 if fast else given.bytes_to_read,
        found.comparison,
        None if found.findings else found.manifest,
        found.as_written,
        given.portion,
    )


_MAX_NAMED = 3
_INDEX = ".index.json"
OF_ANY_SAVE = "nothing in it identifies its save or its rank"


class AllChecks:
    """The checks of the part of a checkpoint that `portion` selects. Each method adds its findings
    to `findings`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        files: CheckpointFiles,
        table: FormatTable,
        budget: MemoryBudget,
        portion: Portion,
    ) -> None:
        self._checkpoint = checkpoint
        self._files = files
        self._table = table
        self._form = format_of(checkpoint, table)
        self._budget = budget
        self._portion = portion
        self.findings: list[Finding] = []
        self.unchecked: dict[str, str] = {}
        self.nonfinite: dict[Key, ValueCounts] = {}
        self.comparison: Comparison | None = None
        self.manifest: DigestManifest | None = None
        self.as_written: Comparison | None = None
        self._incomplete: frozenset[Key] = frozenset()
        self._training = TrainingState()
        self._claims = ClaimedBytes()
        self._digests: dict[str, FileDigest] = {}

    def cut(self, files: Mapping[str, str]) -> None:
        """Add a finding for each of the files that are too short for their tensors."""
        for name, said in files.items():
            if self._portion.has_file(name):
                end = self._checkpoint.files[name]
                self.findings.append(Finding(Check.STRUCTURE, said, name, span=(end, end + 1)))

    def structure(self) -> None:
        """Check the metadata of the checkpoint, and files such as `latest` that refer to it."""
        inspection = inspect(self._checkpoint, self._table)
        self._incomplete = frozenset(inspection.incomplete)
        self._training = inspection.run.training
        self._add(Check.STRUCTURE, inspection.problems)
        self._add(Check.STRUCTURE, self._form.latest_problems(self._checkpoint))
        ranks = self._checkpoint.origin.world_size
        self._add(Check.STRUCTURE, lost_rank_sidecars(self._files.base, self._files.names, ranks))

    def record(self) -> WrittenRecord | None:
        """Return the record inside an output of zerotools, or None if the checkpoint has no record.
        A damaged record is a finding.
        """
        try:
            return written_record(self._files, self._checkpoint.root)
        except BadFile as error:
            self.findings.append(Finding(Check.MANIFEST, str(error)))
            return None

    def sidecar(self, record: WrittenRecord | None) -> Against | None:
        """Return the manifest next to the checkpoint, or None if there is no manifest. A manifest
        that is damaged or describes another checkpoint is a finding.
        """
        try:
            found = adjacent_manifest(self._files)
        except (BadFile, Unsupported) as error:
            self.findings.append(Finding(Check.MANIFEST, str(error)))
            return None
        name = None if found is None or record is None else record.conflict(found.manifest)
        if found is None or record is None or name is None:
            return found
        message = (
            f"{found.path} is the manifest of another checkpoint: it has another digest of {name} "
            f"than zerotools {record.command} recorded in {record.path}; move it to its "
            "checkpoint, or remove it"
        )
        self.findings.append(Finding(Check.MANIFEST, message, name))
        return None

    def bytes(self, on_bytes: Callable[[int], None], *, digests: bool) -> None:
        """Compare the files with the checksums in them, and with the manifest of a job."""
        to_scan = files_to_scan(self._checkpoint, self._files)
        claims = self._claims = claims_of(self._checkpoint)
        for name, fault in to_scan.faults:
            if self._portion.has_file(name):
                self.findings.append(Finding(Check.BYTES, fault, name))
        own = [each for each in to_scan.files if self._portion.has_file(each.name)]
        scans, self.nonfinite = scan_files(
            self._files.base, own, claims, self._budget, on_bytes, digests=digests
        )
        for each in scans:
            self._damage(each, claims)
            if each.digest is not None and each.error is None:
                self._digests[each.file.name] = FileDigest(each.file.size, each.digest)
        self.unchecked = self._without_manifest(to_scan)

    def copies(self) -> None:
        """Check that copies of the same values in different files are equal."""
        if self._portion.is_first:
            try:
                self._form.compare_copies(self._checkpoint)
            except BadFile as error:
                self.findings.append(Finding(Check.STRUCTURE, str(error)))
        own = {
            key: tensor
            for key, tensor in self._sound_tensors().items()
            if self._portion.has_name(key.name)
        }
        for key, difference in _quietly(
            differing_replicas(self._checkpoint, own, self._budget), self.findings
        ):
            self.findings.append(Finding(Check.STRUCTURE, difference, tensor=key))

    def meaning(self) -> None:
        """Check that all numbers are possible values, and that weights are casts of their
        masters."""
        elsewhere = {
            key: key.role in NEVER_NEGATIVE
            for key in self._claims.elsewhere
            if self._portion.has_name(key.name)
        }
        self.nonfinite |= counts_of(self._checkpoint, elsewhere, self._budget)
        for key, counts in self.nonfinite.items():
            if counts.infinities and key.role == "param" and is_mask(self._checkpoint, key):
                continue
            for sentence in odd_values(self._checkpoint, key, counts):
                self.findings.append(Finding(Check.MEANING, sentence, tensor=key))
        scales = meaningless_scales(
            self._checkpoint, self._sound_tensors(), self._portion.has_name, self._budget
        )
        for key, sentence in _quietly(scales, self.findings):
            self.findings.append(Finding(Check.MEANING, sentence, tensor=key))
        try:
            pairs = (
                pair
                for pair in self._form.weight_pairs(self._checkpoint)
                if self._portion.has_name(pair[0])
            )
            found = list(differing_weights(self._checkpoint, pairs, self._budget))
        except BadFile as error:
            self.findings.append(Finding(Check.BYTES, str(error)))
            return
        self.findings += [_not_the_cast(self._checkpoint, each) for each in found]

    def compare_with_record(self, record: WrittenRecord | None) -> None:
        """Check that the files of an output are unchanged since they were written."""
        if record is None:
            return
        known = {n: each for n, each in record.files.items() if self._portion.has_file(n)}
        wrong = list(compare_files(known, self._digests, "its record"))
        self.findings += [
            Finding(
                Check.MANIFEST,
                f"{self._files.base / name} {fault} (zerotools {record.command} wrote "
                f"{record.path}); copy or download it again, or remove {record.path} "
                "if you changed "
                "the file yourself",
                name,
            )
            for name, fault in wrong
        ]
        vouched = known.keys() - {name for name, _ in wrong}
        self.as_written = Comparison(record.path, by_files=True, vouched=frozenset(vouched))
        self.unchecked = {n: why for n, why in self.unchecked.items() if n not in known}

    def compare(
        self, other: Against | None, on_bytes: Callable[[int], None], *, digests: bool
    ) -> None:
        """Compare this checkpoint with the manifest `other`; None: no comparison. With `digests`,
        also make a manifest of this checkpoint, unless there are findings."""
        if other is None and not digests:
            return
        sound = self._sound_tensors()
        keys = [key for key in digested_tensors(self._checkpoint, self._training) if key in sound]
        comparing = Comparing(
            self._checkpoint,
            self._files,
            self._training,
            keys,
            self._budget,
            on_bytes,
            self._portion,
        )
        try:
            if other is not None:
                found, self.comparison = comparing.compare(other, self._digests, self._claims)
                self.findings += found
                self._vouch(self.comparison, {each.file for each in found})
            if digests and not self.findings:
                self.manifest = comparing.manifest(self._digests)
        except BadFile as error:
            self.findings.append(Finding(Check.BYTES, str(error)))

    def _vouch(self, comparison: Comparison, changed: Set[str | None]) -> None:
        """Mark files as checked if a manifest proves that they are unchanged, or if they are in
        `changed`.

        If every bit of the tensors was compared and nothing was found, files that the manifest does
        not list are marked too: those that hold only tensors, and an index.
        """
        vouched = set(comparison.vouched)
        if comparison.is_exact and not (self.findings or self._form.holds_state):
            below = self._checkpoint.root.relative_to(self._files.base)
            vouched |= {(below / name).as_posix() for name in self._checkpoint.files}
            vouched |= {name for name in self._files.names if name.endswith(_INDEX)}
        known = vouched | changed
        self.unchecked = {n: why for n, why in self.unchecked.items() if n not in known}

    def own_unchecked(self) -> dict[str, str]:
        """Return the unchecked files of the portion, each with the reason. If a comparison of
        tensors did not cover every bit, return those of all portions."""
        compared = self.comparison
        if compared is not None and not (compared.by_files or compared.is_exact):
            return self.unchecked
        return {n: why for n, why in self.unchecked.items() if self._portion.has_file(n)}

    def changed(self, sources: Sources) -> None:
        """Add a finding for each file that was written during the verification."""
        for path, difference in sources.changed():
            self.findings.append(
                Finding(
                    Check.CHANGED,
                    f"{path} changed while it was verified: {difference}; a program is writing "
                    "there: wait until it is done, and verify again",
                )
            )

    def _add(self, check: Check, problems: Iterable[Problem]) -> None:
        for each in problems:
            tensor = None if each.tensor is None else Key(each.tensor, "param")
            self.findings.append(Finding(check, each.message, each.file, tensor))

    def _damage(self, found: FileScan, claims: ClaimedBytes) -> None:
        name = found.file.name
        if found.error is not None:
            self.findings.append(Finding(Check.BYTES, found.error, name))
            return
        for record, crc in found.damaged:
            holds = _tensors_in_record(claims, found.file.claimed_as, record)
            self.findings.append(
                Finding(
                    Check.BYTES,
                    f"{self._files.base / name}: record {record.name!r} has CRC-32 {crc:08x}, but "
                    f"the zip directory has {record.crc:08x}: its bytes have changed since it was "
                    f"saved{holds}; copy or download it again",
                    name,
                    span=(record.begin, record.begin + record.length),
                )
            )

    def _without_manifest(self, to_scan: FilesToScan) -> dict[str, str]:
        """Check the files against a job's manifest, and return the files that it does not list and
        that no checksum proves, each with the reason."""
        vouched: set[str] = set()
        unchecked = {**self._of_any_save(), **to_scan.unchecked, **self._doubts()}
        for directory in {self._files.base, self._checkpoint.root.parent}:
            if not directory.is_relative_to(self._files.base) or not (
                (directory / MANIFEST).is_file()
            ):
                continue
            from zerotools.runs.manifest import read_manifest, verify_manifest

            self._add(Check.BYTES, verify_manifest(directory, only=partial(self._has, directory)))
            vouched.add(self._files.name_of(directory / MANIFEST))
            try:
                listed = read_manifest(directory)
            except BadFile:
                continue
            vouched |= {self._files.name_of(directory / name) for name in listed}
        return {name: why for name, why in unchecked.items() if name not in vouched}

    def _has(self, directory: Path, name: str) -> bool:
        return self._portion.has_file(self._files.name_of(directory / name))

    def _doubts(self) -> dict[str, str]:
        """Return sentences about files that may be missing, keyed by an existing file that suggests
        the missing one. That file may never have existed."""
        below = self._checkpoint.root.relative_to(self._files.base)
        doubts = self._form.doubts(self._checkpoint)
        return {(below / name).as_posix(): why for name, why in doubts.items()}

    def _of_any_save(self) -> dict[str, str]:
        """Return the files that do not record their save, and so may be from another save than the
        rest."""
        essential = self._files.essential
        if len(essential) < 2:
            return {}
        below = self._checkpoint.root.relative_to(self._files.base)
        try:
            known = self._form.files_of_one_save(self._checkpoint)
        except BadFile:  # another check reports its fault
            known = ()
        proved = {(below / name).as_posix() for name in known}
        names = (name for name in self._files.names if name in essential - proved)
        return dict.fromkeys(names, OF_ANY_SAVE)

    def _sound_tensors(self) -> Mapping[Key, Tensor]:
        faulty = {finding.tensor.name for finding in self.findings if finding.tensor is not None}
        return {
            key: tensor
            for key, tensor in self._checkpoint.tensors.items()
            if key not in self._incomplete and key.name not in faulty
        }


def _quietly(
    differences: Iterator[tuple[Key, str]], findings: list[Finding]
) -> Iterator[tuple[Key, str]]:
    """Yield the differences. An unreadable file ends them and becomes a finding."""
    try:
        yield from differences
    except (BadFile, Unsupported) as error:
        findings.append(Finding(Check.BYTES, str(error)))


def _tensors_in_record(claims: ClaimedBytes, file: str | None, record: Record) -> str:
    """Return the end of a sentence with the tensors in a record; "" without tensors."""
    if file is None or not record.length:
        return ""
    within = claims.within(file, record.begin, record.begin + record.length)
    names = [str(claims.keys[number]) for _, _, number in within]
    if not names:
        return ""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"; it holds {', '.join(names[:_MAX_NAMED])}{more}"


def _not_the_cast(checkpoint: Checkpoint, found: Difference) -> Finding:
    weight = checkpoint.root / next(iter(found.weight.chunks)).file
    master = checkpoint.root / next(iter(found.master.chunks)).file
    return Finding(
        Check.MEANING,
        f"{weight}: {found.name} is not equal to its master in {master} after a cast to "
        f"{found.weight.dtype}: {found.elements} of {found.numel} elements differ, the first at "
        f"{found.first}. Possible reasons: the files are from two saves, the order of the flat "
        "buffers is not that of param_shapes, or the run saved averaged weights (EMA); take "
        "another checkpoint",
        tensor=Key(found.name, "param"),
    )
