"""The comparison of a checkpoint with a manifest, for any format and ranks of the two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from zerotools.core.checkpoint import Key
from zerotools.core.counts import counted
from zerotools.core.dtypes import FLOAT16, FLOAT32, FLOAT64, DType
from zerotools.core.errors import BadRequest
from zerotools.ops.verification.digests import TensorDigest
from zerotools.ops.verification.manifests.digest_manifest import DigestManifest, FileDigest
from zerotools.ops.verification.portion import WHOLE, Portion, tied_names

_MAX_NAMED = 3
_COPY = "param16"
_OF_SEVERAL = {"has": "have", "is": "are"}
"""The verbs with which a difference of one tensor begins, for several."""


@dataclass(frozen=True)
class TensorComparison:
    """`equal` tensors have the bytes of the manifest, `cast` those of one of its casts or the
    reverse. `differing` has the difference of each other tensor; `notes` are sentences on tensors
    that only one of the two holds, if that is not a fault. `narrower` are those of `cast` with bits
    that the manifest does not cover, with its type. `is_complete` means that it has all tensors."""

    equal: tuple[Key, ...]
    cast: tuple[Key, ...]
    differing: Mapping[Key, str]
    notes: tuple[str, ...] = ()
    narrower: Mapping[Key, DType] = field(default_factory=dict)
    is_complete: bool = True


def same_layout(manifest: DigestManifest, found: DigestManifest, sizes: Mapping[str, int]) -> bool:
    """Return whether the manifest is of files such as these: of the same format, stage and ranks,
    with some file of the same name and size."""
    if _layout(manifest) != _layout(found):
        return False
    return any(sizes.get(name) == each.size for name, each in manifest.files.items())


def _layout(manifest: DigestManifest) -> tuple[object, ...]:
    return manifest.format, manifest.stage, manifest.world_size


def compare_files(
    known: Mapping[str, FileDigest], found: Mapping[str, FileDigest], by: str = "the manifest"
) -> Iterator[tuple[str, str]]:
    """Yield (file, fault) for every file that differs from `by`."""
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
        BadRequest: the two have no name of a tensor in common.
    """
    ours = {key.name for key in keys} | set(manifest.aliases)
    theirs = {key.name for key in manifest.tensors}
    if theirs and ours.isdisjoint(theirs):
        raise BadRequest(
            f"the manifest is of another model ({manifest.name}): none of the names of its "
            f"{counted(len(theirs), 'tensor')} is in {path}, which has names such as "
            f"{next(iter(ours), 'none')}; take the manifest of this checkpoint"
        )


def compare_tensors(
    manifest: DigestManifest,
    found: DigestManifest,
    *,
    thinned: bool = False,
    portion: Portion = WHOLE,
) -> TensorComparison:
    """Compare by names and roles, through tied names, and through casts if the types differ. A
    `thinned` checkpoint may lack the manifest's optimizer state. `found` has the tensors of
    `portion`."""
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
        how = relation(ours, manifest.tensors[other])
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
    """Return the type for the comparison of two tensors that are casts of each other."""
    return FLOAT16 if {ours.dtype, theirs.dtype} == {FLOAT32, FLOAT64} else theirs.dtype


def _is_cast_of(ours: TensorDigest, theirs: TensorDigest) -> bool:
    """Return whether ours is a cast of theirs: then the manifest covers every bit of ours."""
    own = ours.dtype.name
    return own in ours.casts and ours.casts[own] == theirs.casts.get(own)


def _only(keys: Sequence[Key], named: Mapping[Key, str], what: str) -> Iterator[str]:
    by_role: dict[str, int] = {}
    for key in keys:
        if key not in named:
            by_role[key.role] = by_role.get(key.role, 0) + 1
    if by_role:
        parts = ", ".join(f"{role} ({counted(n, 'tensor')})" for role, n in by_role.items())
        yield f"{what} {parts}"


def _counterpart(
    key: Key, tensors: Mapping[Key, TensorDigest], aliases: Mapping[str, str]
) -> Key | None:
    """Return the same tensor in the other checkpoint. Formats for weights call buffers parameters,
    and any of several tied names may have the bytes."""
    names = list(tied_names(key.name, aliases))
    roles = {"param": ("param", "buffer", _COPY), "buffer": ("buffer", "param")}
    for name in names:
        for role in roles.get(key.role, (key.role,)):
            if (other := Key(name, role)) in tensors:
                return other
    return None


def relation(ours: TensorDigest, theirs: TensorDigest) -> str | None:
    """Return None for the same bytes, "" for the same after a cast, else the difference."""
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
    """Return whether a tensor that the other lacks repeats one that it has: a 16-bit copy of a
    master, or a tied name."""
    own = holder.tensors[key]
    names = [
        name
        for name in tied_names(key.name, {**holder.aliases, **other.aliases})
        if name != key.name or key.role == _COPY
    ]
    kept = (other.tensors.get(Key(name, "param")) for name in names)
    is_weight = key.role in (_COPY, "param")
    return is_weight and any(each and relation(own, each) in (None, "") for each in kept)


def said(differing: Mapping[Key, str]) -> Iterator[tuple[str, Key]]:
    """Yield one sentence for each kind of difference, with the first of its tensors."""
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
