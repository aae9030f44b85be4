"""The record of the base model's files, for checkpoints that hold only adapters.

If the model has 4-bit weights, only its adapters are saved. The base model stays in the directory
that the run started from. The record has the size and SHA-256 of each of its files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.runs.manifest import digests_of


@dataclass(frozen=True, slots=True)
class BaseFile:
    """One file of a base model: `size` in bytes, `sha256` in lower-case hex."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BaseRecord:
    """The base model that adapters belong to.

    Attributes:
        files: the weight files in the directory `path`, keyed by name.
        precision: the dtype of the base model in the run, such as "nf4".
        double_quant: True if the scales of the 4-bit weights are stored in 8 bits.
    """

    path: str
    precision: str
    files: Mapping[str, BaseFile]
    double_quant: bool = True


def record_base(
    directory: Path, names: Iterable[str], precision: str, *, double_quant: bool = True
) -> BaseRecord:
    """Return the record of the files `names` in `directory`. All bytes of the files are read, to
    compute their SHA-256.

    Raises:
        BadRequest: a file cannot be read.
    """
    try:
        found = digests_of(directory, sorted(names))
    except OSError as error:
        raise BadRequest(
            f"model.path: {error.filename or directory} cannot be read: {error.strerror}"
        ) from None
    files = {name: BaseFile(entry.size, entry.sha256) for name, entry in found.items()}
    return BaseRecord(str(directory), precision, files, double_quant)


def base_mismatch(base: BaseRecord, directory: Path, *, digests: bool = True) -> str | None:
    """Compare the weight files in `directory` with the record `base`. Return the reason why they
    differ, or None if they are equal.

    If `digests` is False, only file sizes are compared, and no bytes are read.
    """
    for name, wanted in base.files.items():
        try:
            size = (directory / name).stat().st_size
        except OSError as error:
            return f"{directory / name} cannot be read: {error.strerror}"
        if size != wanted.size:
            return f"{directory / name} has {size} bytes, but had {wanted.size} when training began"
    if digests:
        try:
            found = digests_of(directory, list(base.files))
        except OSError as error:
            return f"{error.filename or directory} cannot be read: {error.strerror}"
        for name, wanted in base.files.items():
            if found[name].sha256 != wanted.sha256:
                return (
                    f"{directory / name} has SHA-256 {found[name].sha256[:12]}…, but had "
                    f"{wanted.sha256[:12]}… when training began"
                )
    return None


def base_from_tree(tree: Any) -> BaseRecord:
    """Return the record of the base model from its JSON value in job.json. Raises ValueError if
    the value is malformed.
    """
    if not isinstance(tree, Mapping) or not isinstance(tree.get("files"), Mapping):
        raise ValueError("must be a table with path, precision and files")
    path, precision = tree.get("path"), tree.get("precision")
    if not isinstance(path, str) or not isinstance(precision, str):
        raise ValueError("path and precision must be strings")
    double_quant = tree.get("double_quant", True)
    if not isinstance(double_quant, bool):
        raise ValueError("double_quant must be true or false")
    files = {}
    for name, value in tree["files"].items():
        size = value.get("size") if isinstance(value, Mapping) else None
        digest = value.get("sha256") if isinstance(value, Mapping) else None
        if type(size) is not int or size < 0 or not isinstance(digest, str):
            raise ValueError(f"files: {name!r:.80} must have a size and a sha256")
        if not stays_below_root(name):
            raise ValueError(f"files: {name!r:.80} is not a file below the directory")
        files[name] = BaseFile(size, digest)
    if not files:
        raise ValueError("files: lists none")
    return BaseRecord(path, precision, files, double_quant)
