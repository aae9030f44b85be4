"""The reference of a comparison: a manifest, or another checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.counts import counted
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.training_state import TrainingState
from zerotools.formats import FORMATS, FormatTable, read_any, require_readable, training_of
from zerotools.io.files.allowance import Beside, nothing_beside
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.verification.checkpoint_files import CheckpointFiles, subject_of
from zerotools.ops.verification.claimed_bytes import ClaimedBytes
from zerotools.ops.verification.digests import TensorDigest, digests_of
from zerotools.ops.verification.element_checks import is_exact_in
from zerotools.ops.verification.findings import Check, Comparison, Finding
from zerotools.ops.verification.manifests.digest_manifest import (
    DigestManifest,
    FileDigest,
    digested,
    manifest_of,
    read_digest_manifest,
)
from zerotools.ops.verification.manifests.manifest_comparison import (
    compare_files,
    compare_tensors,
    refuse_another,
    relation,
    said,
    same_layout,
)
from zerotools.ops.verification.manifests.manifest_names import aligned, sidecars_of
from zerotools.ops.verification.portion import WHOLE, Portion
from zerotools.runs.thinning_record import read_thinned

_MAX_NAMED = 3
# For a single tensor, damage and another checkpoint look the same.
_FEWEST_TO_TELL = 2


@dataclass(frozen=True)
class Against:
    """A manifest and its name: its path, or that of the checkpoint it was made from."""

    manifest: DigestManifest
    path: Path


def against(
    path: Path,
    budget: MemoryBudget,
    table: FormatTable = FORMATS,
    *,
    verified: Beside = nothing_beside,
    portion: Portion = WHOLE,
) -> Against:
    """Return the user's reference: a manifest (a `.json` file), or a checkpoint with tensors to
    read.

    The size of a manifest is limited to that for the `verified` bytes. Of a checkpoint, the tensors
    that `portion` may need are read.

    Raises:
        BadRequest: `path` does not exist.
        BadFile: the manifest is damaged, or the checkpoint.
        Unsupported: the manifest is of another version.
    """
    if path.suffix == ".json" and not path.is_dir():
        try:
            return Against(read_digest_manifest(path, verified), path)
        except OSError as error:
            raise BadRequest(f"{path} cannot be read: {error.strerror}") from None
    checkpoint = read_any(path, table=table)
    require_readable(checkpoint)
    training = training_of(checkpoint, table)
    keys = [
        key
        for key in digested(checkpoint, training)
        if portion.needs_name(key.name, checkpoint.aliases)
    ]
    tensors = digests_of(checkpoint, keys, budget)
    name = subject_of(checkpoint).name
    return Against(manifest_of(checkpoint, training, tensors, {}, name), path)


def beside(files: CheckpointFiles) -> Against | None:
    """Return the manifest next to a checkpoint, or None if it does not exist.

    Raises:
        BadFile, Unsupported: it is damaged, or of another version.
    """
    for path, must_match in sidecars_of(files):
        try:
            manifest = read_digest_manifest(path, files.on_disk)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise BadFile(f"{path} cannot be read: {error.strerror}") from None
        own = aligned(manifest, files)
        if own is not None or not must_match:
            return Against(own or manifest, path)
    return None


class Comparing:
    """One checkpoint and its reference. `keys` are its sound tensors that have digests; those of
    `portion` are compared. Computed digests are kept in `digests`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        files: CheckpointFiles,
        training: TrainingState,
        keys: Sequence[Key],
        budget: MemoryBudget,
        on_bytes: Callable[[int], None],
        portion: Portion = WHOLE,
    ) -> None:
        self._checkpoint = checkpoint
        self._files = files
        self._training = training
        self._keys = keys
        self._own = [key for key in keys if portion.has_name(key.name)]
        self._portion = portion
        self._budget = budget
        self._on_bytes = on_bytes
        self.digests: dict[Key, TensorDigest] = {}

    def manifest(self, digests: Mapping[str, FileDigest]) -> DigestManifest:
        """Return the manifest of this checkpoint, with all of its tensors that are sound."""
        self._digest(self._keys)
        return self._manifest(digests)

    def compare(
        self, other: Against, digests: Mapping[str, FileDigest], claims: ClaimedBytes
    ) -> tuple[list[Finding], Comparison]:
        """Compare file by file if the manifest is of files such as these, else by tensors. So a
        checkpoint that was thinned later is compared by its remaining tensors.

        Raises:
            BadRequest: the manifest is of another model.
        """
        path = other.path
        manifest = aligned(other.manifest, self._files) or other.manifest
        refuse_another(manifest, list(self._checkpoint.tensors), self._files.subject)
        own = self._manifest(digests)
        if None not in (own.step, manifest.step) and own.step != manifest.step:
            message = (
                f"{path} is of step {manifest.step}, but {self._files.subject} is of step "
                f"{own.step}: it is the manifest of another checkpoint"
            )
            return [Finding(Check.MANIFEST, message)], Comparison(path)
        is_thinned = read_thinned(self._checkpoint.root) is not None
        if not is_thinned and same_layout(manifest, own, self._files.names):
            found = list(self._files_of(manifest, digests, claims))
            if found and (stranger := self._stranger(other)) is not None:
                found = [stranger]
            vouched = frozenset(self._own_files(manifest)) if not found else frozenset[str]()
            return found, Comparison(path, len(self._own), True, vouched)
        self._digest(self._own)
        result = compare_tensors(
            manifest, self._manifest(digests), thinned=is_thinned, portion=self._portion
        )
        stranger = self._stranger(other) if result.differing else None
        if stranger is not None:
            return [stranger], Comparison(path)
        found = [
            Finding(Check.MANIFEST, f"{self._files.subject}: {sentence} ({path})", tensor=key)
            for sentence, key in said(result.differing)
        ]
        count = len(result.equal) + len(result.cast)
        lossy = [
            key
            for key, dtype in result.narrower.items()
            if not is_exact_in(self._checkpoint, key, dtype)
        ]
        notes = (*_less_known(lossy, result.narrower), *result.notes)
        is_exact = result.is_complete and not lossy
        return found, Comparison(path, count, notes=notes, is_exact=is_exact)

    def _stranger(self, other: Against) -> Finding | None:
        """Return a finding if no tensor agrees with the manifest: then it is of another checkpoint,
        and this one is not damaged."""
        shared = [key for key in self._own if key in other.manifest.tensors]
        if len(shared) < _FEWEST_TO_TELL:
            return None
        self._digest(shared)
        relations = (relation(self.digests[key], other.manifest.tensors[key]) for key in shared)
        if any(how in (None, "") for how in relations):
            return None
        return Finding(
            Check.MANIFEST,
            f"{other.path} is the manifest of another checkpoint: all {len(shared)} tensors that "
            f"it shares with {self._files.subject} have other values",
        )

    def _files_of(
        self,
        manifest: DigestManifest,
        digests: Mapping[str, FileDigest],
        claims: ClaimedBytes,
    ) -> Iterator[Finding]:
        for name, fault in compare_files(self._own_files(manifest), digests):
            held = self._changed_in(name, manifest, claims)
            yield Finding(
                Check.MANIFEST, f"{self._files.base / name} {fault}{held}; take another copy", name
            )

    def _own_files(self, manifest: DigestManifest) -> dict[str, FileDigest]:
        return {n: each for n, each in manifest.files.items() if self._portion.has_file(n)}

    def _changed_in(self, name: str, manifest: DigestManifest, claims: ClaimedBytes) -> str:
        """Return the end of a sentence that names the changed tensors of a changed file."""
        root, path = self._checkpoint.root, self._files.base / name
        own = path.relative_to(root).as_posix() if path.is_relative_to(root) else name
        places = claims.places.get(own)
        numbers = set() if places is None else set(places[:, 2].tolist())
        keys = [key for n in numbers if (key := claims.keys[n]) in set(self._keys)]
        try:
            self._digest([key for key in keys if key not in self.digests])
        except BadFile as error:
            return f" ({error})"
        changed = [
            str(key)
            for key in keys
            if (other := manifest.tensors.get(key)) and other.digest != self.digests[key].digest
        ]
        more = f" and {len(changed) - _MAX_NAMED} more" if len(changed) > _MAX_NAMED else ""
        return f"; changed are {', '.join(changed[:_MAX_NAMED])}{more}" if changed else ""

    def _digest(self, keys: Sequence[Key]) -> None:
        needed = [key for key in keys if key not in self.digests]
        self.digests |= digests_of(self._checkpoint, needed, self._budget, self._on_bytes)

    def _manifest(self, digests: Mapping[str, FileDigest]) -> DigestManifest:
        tensors = {key: self.digests[key] for key in self._keys if key in self.digests}
        return manifest_of(
            self._checkpoint, self._training, tensors, digests, self._files.subject.name
        )


def _less_known(keys: Sequence[Key], types: Mapping[Key, DType]) -> Iterator[str]:
    if keys:
        names = ", ".join(dict.fromkeys(types[key].name for key in keys))
        yield (
            f"{counted(len(keys), 'tensor')} compared as {names}: the bits that this cast removes "
            "are not compared"
        )
