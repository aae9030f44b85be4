"""Compare a checkpoint with a manifest of digests, or with another checkpoint of any format and
number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import FLOAT16, FLOAT32, FLOAT64, DType
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.training_state import TrainingState
from zerotools.formats import FORMATS, FormatTable, read_any, require_readable, training_of
from zerotools.io.files.metadata_memory_limit import DataSize, no_data
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.verification.checkpoint_files import CheckpointFiles, subject_of
from zerotools.ops.verification.digest_manifest import (
    DigestManifest,
    FileDigest,
    aligned_manifest,
    digested_tensors,
    manifest_of,
    read_digest_manifest,
    sidecars_of,
)
from zerotools.ops.verification.divide_checks import WHOLE, Portion, tied_names
from zerotools.ops.verification.file_scan import ClaimedBytes
from zerotools.ops.verification.tensor_digests import TensorDigest, digests_of
from zerotools.ops.verification.value_checks import is_exact_in
from zerotools.ops.verification.verification_result import Check, Comparison, Finding
from zerotools.runs.thinning_record import read_thinned

_MAX_NAMED = 3
_COPY = "param16"
_OF_SEVERAL = {"has": "have", "is": "are"}
"""The plural forms of the verbs that a difference may begin with."""


@dataclass(frozen=True)
class TensorComparison:
    """The result of comparing the tensors of a checkpoint with a manifest.

    Attributes:
        equal: the tensors with the digest that the manifest records.
        cast: the tensors that are equal only after a cast of the tensor or of the manifest's
            tensor.
        differing: a description of the difference for each other tensor.
        notes: sentences about tensors that only the checkpoint or only the manifest has, if that is
            not a fault.
        narrower: the tensors in `cast` that have more bits than the manifest's digest covers, each
            with the dtype in the manifest.
        is_complete: the manifest has all tensors of the checkpoint.
    """

    equal: tuple[Key, ...]
    cast: tuple[Key, ...]
    differing: Mapping[Key, str]
    notes: tuple[str, ...] = ()
    narrower: Mapping[Key, DType] = field(default_factory=dict)
    is_complete: bool = True


def same_layout(manifest: DigestManifest, found: DigestManifest, sizes: Mapping[str, int]) -> bool:
    """Return whether the manifest `manifest` describes files with the layout of the checkpoint
    `found`: the same format, ZeRO stage and number of ranks, and at least one file with the same
    name and size."""
    if _layout(manifest) != _layout(found):
        return False
    return any(sizes.get(name) == each.size for name, each in manifest.files.items())


def _layout(manifest: DigestManifest) -> tuple[object, ...]:
    return manifest.format, manifest.stage, manifest.world_size


def compare_files(
    known: Mapping[str, FileDigest], found: Mapping[str, FileDigest], by: str = "the manifest"
) -> Iterator[tuple[str, str]]:
    """Yield the name and the fault of every file in `known` that differs in `found`. `by` is the
    name of the manifest in messages."""
    for name, expected in known.items():
        actual = found.get(name)
        if actual is None:
            yield name, f"is missing or cannot be read, but {by} lists it"
        elif actual.size != expected.size:
            yield name, f"has {actual.size} bytes, but {by} has {expected.size}"
        elif actual.digest != expected.digest:
            yield (
                name,
                (
                    f"has the digest {actual.digest[:12]}…, but {by} has {expected.digest[:12]}…: "
                    "its bytes have changed"
                ),
            )


def refuse_another(manifest: DigestManifest, keys: Sequence[Key], path: object) -> None:
    """Refuse a manifest of another model.

    Raises:
        BadRequest: the manifest has none of the tensor names in `keys`.
    """
    ours = {key.name for key in keys} | set(manifest.aliases)
    theirs = {key.name for key in manifest.tensors}
    if theirs and ours.isdisjoint(theirs):
        raise BadRequest(
            f"the manifest belongs to another model ({manifest.name}): {path} has none of its "
            f"{count_text(len(theirs), 'tensor')}, but has names such as "
            f"{next(iter(ours), 'none')}; use the manifest of this checkpoint"
        )


def compare_tensors(
    manifest: DigestManifest,
    found: DigestManifest,
    *,
    thinned: bool = False,
    portion: Portion = WHOLE,
) -> TensorComparison:
    """Compare tensors by name and role, through tied names, and through casts if the dtypes differ.
    `found` has the digests of the checkpoint's tensors in `portion`. A `thinned` checkpoint may
    lack optimizer state that the manifest has."""
    aliases = {**found.aliases, **manifest.aliases}
    equal, cast, rough, differing = [], [], dict[Key, DType](), dict[Key, str]()
    matched: set[Key] = set()
    roles = {key.role for key in manifest.tensors}
    extra: list[Key] = []
    for key, ours in found.tensors.items():
        other = _counterpart(key, manifest.tensors, aliases)
        if other is None:
            extra.append(key)
            continue
        matched.add(other)
        how = digest_difference(ours, manifest.tensors[other])
        if how is None:
            equal.append(key)
        elif how == "":
            cast.append(key)
            if not _is_cast_of(ours, manifest.tensors[other]):
                rough[key] = _known_as(ours, manifest.tensors[other])
        else:
            differing[key] = how
    lacking = [
        key
        for key in manifest.tensors
        if key not in matched
        and portion.has_name(key.name, aliases)
        and not _is_repeated(key, manifest, found)
    ]
    for key in extra:
        if key.role in roles and not _is_repeated(key, found, manifest):
            differing[key] = "is not in the manifest"
    ours_roles = portion.roles | {key.role for key in found.tensors}
    must_have = not thinned and _layout(manifest) == _layout(found)
    for key in lacking:
        if key.role in ours_roles or must_have or key.role in ("param", "buffer"):
            differing[key] = "is in the manifest, but not in the checkpoint"
    for key, value in manifest.scalars.items():
        own = found.scalars.get(key)
        if own is not None and own != value and portion.has_name(key.name, aliases):
            differing[key] = f"is {own}, but {value} in the manifest"
    unknown = [key for key in extra if key not in differing]
    notes = [
        *_only(lacking, differing, "the manifest also has"),
        *_only(unknown, {}, "the manifest does not have"),
    ]
    return TensorComparison(
        tuple(equal), tuple(cast), differing, tuple(notes), rough, is_complete=not unknown
    )


def _known_as(ours: TensorDigest, theirs: TensorDigest) -> DType:
    """Return a dtype that makes the tensors equal by a cast."""
    return FLOAT16 if {ours.dtype, theirs.dtype} == {FLOAT32, FLOAT64} else theirs.dtype


def _is_cast_of(ours: TensorDigest, theirs: TensorDigest) -> bool:
    """Return whether the checkpoint's tensor `ours` is a cast of the manifest's tensor `theirs`, so
    that the manifest's digest covers every bit of `ours`."""
    own = ours.dtype.name
    return own in ours.casts and ours.casts[own] == theirs.casts.get(own)


def _only(keys: Sequence[Key], named: Mapping[Key, str], what: str) -> Iterator[str]:
    by_role: dict[str, int] = {}
    for key in keys:
        if key not in named:
            by_role[key.role] = by_role.get(key.role, 0) + 1
    if by_role:
        parts = ", ".join(f"{role} ({count_text(n, 'tensor')})" for role, n in by_role.items())
        yield f"{what} {parts}"


def _counterpart(
    key: Key, tensors: Mapping[Key, TensorDigest], aliases: Mapping[str, str]
) -> Key | None:
    """Return the key in `tensors` of the tensor `key`; None if it is not there. The keys may differ
    in role, because formats of weights store buffers as parameters. They may differ in name if the
    tensor has tied names."""
    names = list(tied_names(key.name, aliases))
    roles = {"param": ("param", "buffer", _COPY), "buffer": ("buffer", "param")}
    for name in names:
        for role in roles.get(key.role, (key.role,)):
            if (other := Key(name, role)) in tensors:
                return other
    return None


def digest_difference(ours: TensorDigest, theirs: TensorDigest) -> str | None:
    """Compare two tensors by their digests. Return None if their bytes are equal, "" if they are
    equal after a cast, else a phrase that describes the difference."""
    if ours.shape != theirs.shape:
        return f"has the shape {ours.shape}, but {theirs.shape} in the manifest"
    if ours.dtype == theirs.dtype:
        return None if ours.digest == theirs.digest else "has other values than in the manifest"
    if {ours.dtype, theirs.dtype} == {FLOAT32, FLOAT64}:
        shared = [FLOAT16.name]  # float64 becomes float16 through float32
    else:
        shared = [name for name in (ours.dtype.name, theirs.dtype.name) if name in ours.casts]
    if not shared or not theirs.casts:
        return f"is {ours.dtype}, but {theirs.dtype} in the manifest: they cannot be compared"
    if any(ours.casts[name] == theirs.casts.get(name) for name in shared):
        return ""
    return f"is {ours.dtype}, but not the cast of the {theirs.dtype} in the manifest"


def _is_repeated(key: Key, holder: DigestManifest, other: DigestManifest) -> bool:
    """Return whether `other` has the values of `key`, a weight of `holder`, under another key: as
    the master of a 16-bit copy, or under a tied name."""
    own = holder.tensors[key]
    names = [
        name
        for name in tied_names(key.name, {**holder.aliases, **other.aliases})
        if name != key.name or key.role == _COPY
    ]
    kept = (other.tensors.get(Key(name, "param")) for name in names)
    is_weight = key.role in (_COPY, "param")
    return is_weight and any(each and digest_difference(own, each) in (None, "") for each in kept)


def difference_sentences(differing: Mapping[Key, str]) -> Iterator[tuple[str, Key]]:
    """Yield one sentence for each kind of difference, with the first tensor that has it."""
    by_what: dict[str, list[Key]] = {}
    for key, what in differing.items():
        by_what.setdefault(what, []).append(key)
    for what, keys in by_what.items():
        verb, rest = what.split(" ", 1)
        verb = verb if len(keys) == 1 else _OF_SEVERAL[verb]
        yield f"{_named(keys)} {verb} {rest}", keys[0]


def _named(keys: Sequence[Key]) -> str:
    names = [str(key) for key in keys[:_MAX_NAMED]]
    if len(keys) > _MAX_NAMED:
        names.append(f"{len(keys) - _MAX_NAMED} more")
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


# For a single tensor, damage and another checkpoint look the same.
_FEWEST_TO_TELL = 2


@dataclass(frozen=True)
class Against:
    """The manifest that a checkpoint is compared with. `path` is that of the manifest, or of the
    checkpoint that it was computed from."""

    manifest: DigestManifest
    path: Path


def chosen_reference(
    path: Path,
    budget: MemoryBudget,
    table: FormatTable = FORMATS,
    *,
    verified: DataSize = no_data,
    portion: Portion = WHOLE,
) -> Against:
    """Return the manifest that the user named (a `.json` file), or compute it from another
    checkpoint.

    `verified` returns the size in bytes of the verified checkpoint, which limits the size of a
    manifest. Of another checkpoint, only the tensors that `portion` may need are read.

    Raises:
        BadRequest: `path` does not exist.
        BadFile: the manifest or the checkpoint is damaged.
        Unsupported: the manifest has another version.
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
        for key in digested_tensors(checkpoint, training)
        if portion.needs_name(key.name, checkpoint.aliases)
    ]
    tensors = digests_of(checkpoint, keys, budget)
    name = subject_of(checkpoint).name
    return Against(manifest_of(checkpoint, training, tensors, {}, name), path)


def adjacent_manifest(files: CheckpointFiles) -> Against | None:
    """Return the manifest next to a checkpoint, or None if it does not exist.

    Raises:
        BadFile, Unsupported: the manifest is damaged, or has another version.
    """
    for path, must_match in sidecars_of(files):
        try:
            manifest = read_digest_manifest(path, files.on_disk)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise BadFile(f"{path} cannot be read: {error.strerror}") from None
        own = aligned_manifest(manifest, files)
        if own is not None or not must_match:
            return Against(own or manifest, path)
    return None


class Comparing:
    """Compares one checkpoint with a manifest.

    Attributes:
        keys: the undamaged tensors of the checkpoint that get a digest. Only those in `portion` are
            compared.
        digests: the digests that have been computed so far.
    """

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
        """Return the manifest of this checkpoint, with the digests of all undamaged tensors and of
        files (`digests`)."""
        self._digest(self._keys)
        return self._manifest(digests)

    def compare(
        self, other: Against, digests: Mapping[str, FileDigest], claims: ClaimedBytes
    ) -> tuple[list[Finding], Comparison]:
        """Compare the checkpoint with `other`: file by file if the manifest describes files with
        the same layout, else tensor by tensor. A thinned checkpoint is compared tensor by tensor.

        Raises:
            BadRequest: the manifest belongs to another model.
        """
        path = other.path
        manifest = aligned_manifest(other.manifest, self._files) or other.manifest
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
                return [stranger], Comparison(path, len(self._own), True)
            vouched = self._own_files(manifest).keys() - {each.file for each in found}
            return found, Comparison(path, len(self._own), True, frozenset(vouched))
        self._digest(self._own)
        result = compare_tensors(
            manifest, self._manifest(digests), thinned=is_thinned, portion=self._portion
        )
        stranger = self._stranger(other) if result.differing else None
        if stranger is not None:
            return [stranger], Comparison(path)
        found = [
            Finding(Check.MANIFEST, f"{self._files.subject}: {sentence} ({path})", tensor=key)
            for sentence, key in difference_sentences(result.differing)
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
        """Return a finding if all common tensors differ, else None. The finding says that the
        manifest belongs to another checkpoint, and this checkpoint is not damaged."""
        shared = [key for key in self._own if key in other.manifest.tensors]
        if len(shared) < _FEWEST_TO_TELL:
            return None
        self._digest(shared)
        relations = (
            digest_difference(self.digests[key], other.manifest.tensors[key]) for key in shared
        )
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
            changed, unchanged, end = self._compared_in(name, manifest, claims)
            yield Finding(
                Check.MANIFEST,
                f"{self._files.base / name} {fault}{end}; copy or download it again",
                name,
                changed=changed,
                unchanged=unchanged,
            )

    def _own_files(self, manifest: DigestManifest) -> dict[str, FileDigest]:
        return {n: each for n, each in manifest.files.items() if self._portion.has_file(n)}

    def _compared_in(
        self, name: str, manifest: DigestManifest, claims: ClaimedBytes
    ) -> tuple[tuple[Key, ...], tuple[Key, ...], str]:
        """Return the changed and the unchanged tensors in a changed file, and a text with the names
        of the changed tensors that ends the sentence about the file."""
        root, path = self._checkpoint.root, self._files.base / name
        own = path.relative_to(root).as_posix() if path.is_relative_to(root) else name
        places = claims.places.get(own)
        numbers = set() if places is None else set(places[:, 2].tolist())
        keys = [key for n in numbers if (key := claims.keys[n]) in set(self._keys)]
        try:
            self._digest([key for key in keys if key not in self.digests])
        except BadFile as error:
            return (), (), f" ({error})"
        known = [key for key in keys if key in manifest.tensors]
        equal = {k for k in known if manifest.tensors[k].digest == self.digests[k].digest}
        changed = tuple(key for key in known if key not in equal)
        unchanged = tuple(key for key in known if key in equal)
        if not changed:
            return changed, unchanged, ""
        more = f" and {len(changed) - _MAX_NAMED} more" if len(changed) > _MAX_NAMED else ""
        named = ", ".join(map(str, changed[:_MAX_NAMED]))
        return changed, unchanged, f"; the changed tensors are {named}{more}"

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
            f"{count_text(len(keys), 'tensor')} compared after a cast to {names}: the bits that "
            "the cast removes are not compared"
        )
