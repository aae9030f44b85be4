"""Find the tag directory of a path: either the path itself or, if it is a save directory, a
directory in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Problem
from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.formats.deepspeed.schema.tag_file_names import (
    LATEST,
    TagListing,
    has_parameter_directories,
    is_tag_directory,
    list_files,
)
from zerotools.io.files.regular_files import read_regular, source_file
from zerotools.io.files.tolerated_damage import raise_or_record

_LONGEST_NAME = 255
_LARGEST_LATEST = 4096


@dataclass(frozen=True, slots=True)
class TagDirectory:
    """A tag directory. `others` are the other tags in its save directory, and `notes` are sentences
    for the user."""

    directory: Path
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.directory.name


def find_tag(path: Path, tag: str | None = None) -> TagDirectory | None:
    """Return the tag directory of `path`, or None if `path` has no DeepSpeed files.

    The first of these directories that exists is returned: `tag` in the save directory, `path`
    itself, the tag that `latest` names, the only tag directory in `path`.

    Raises:
        BadRequest: the tag does not exist, or there are several tags and none is selected.
        BadFile: `latest` is damaged.
    """
    if tag is not None:
        return _named(path, tag)
    if is_tag_directory(path):
        return TagDirectory(path)
    tags = _tags(path)
    if tags:
        return _choose(path, tags)
    return None


def open_tag(path: Path, tag: str | None) -> tuple[TagDirectory, TagListing]:
    """Return the tag directory of `path`, and the listing of its files, which has at least one
    model file.

    Raises:
        BadRequest: the path or tag does not exist.
        BadFile: `path` has no DeepSpeed files, or the model files are lost.
    """
    if not path.exists():
        raise BadRequest(f"{path} does not exist")
    found = find_tag(path, tag)
    if found is None:
        raise BadFile(
            f"{path} holds no *_model_states.pt of DeepSpeed; name the directory that has these "
            "files"
        )
    listing = list_files(found.directory)
    if not listing.models:
        error = BadFile(
            f"{found.directory} has optimizer files of DeepSpeed, but its *_model_states.pt are "
            "missing; copy or download them again"
        )
        raise_or_record(found.directory, error)
    return found, listing


def is_universal(path: Path, tag: str | None) -> bool:
    """Return whether the tag of `path` is a universal checkpoint; False if the tag cannot be
    determined. The reader of ZeRO checkpoints reports this error.
    """
    try:
        found = find_tag(path, tag)
    except ZerotoolsError:
        return False
    return found is not None and has_parameter_directories(found.directory)


def run_directory(source: Checkpoint) -> Path | None:
    """Return the parent directory of the tag if it belongs to the run: the user named it, or it
    contains a file `latest`. Else return None.
    """
    directory, asked = source.root.parent, source.origin.path
    is_own = asked != source.root or any((directory / name).is_file() for name in LATEST)
    return directory if is_own else None


def latest_problems(source: Checkpoint) -> Iterator[Problem]:
    """Yield a problem if a file `latest` next to the tag does not contain the name of an existing
    tag.

    With such a file, a run that resumes from the directory finds no checkpoint, or a wrong one.
    """
    directory = source.root.parent
    for name in LATEST:
        file = directory / name
        if not file.is_file():
            continue
        try:
            text = read_regular(file, _LARGEST_LATEST, is_source=False).decode().strip()
        except (OSError, ValueError, BadFile) as error:
            yield Problem(f"{file} cannot be read ({error!s:.200}); write the tag's name into it")
            continue
        is_name = "/" not in text and text not in ("", ".", "..")
        if not is_name or len(text) > _LONGEST_NAME or not is_tag_directory(directory / text):
            yield Problem(
                f"{file} names {text!r:.80}, but this tag does not exist, so no run can resume; "
                f"write the name of an existing tag into it, such as {source.root.name}"
            )


def _tags(path: Path) -> list[str]:
    if not path.is_dir():
        return []
    return sorted(entry.name for entry in path.iterdir() if is_tag_directory(entry))


def _named(path: Path, tag: str) -> TagDirectory:
    for save_directory in (path, path.parent):
        tags = _tags(save_directory)
        if tag in tags:
            others = tuple(other for other in tags if other != tag)
            return TagDirectory(save_directory / tag, others)
    known = ", ".join(_tags(path)) or "none"
    raise BadRequest(f"{path} has no tag {tag!r}; its tags: {known}")


def _choose(path: Path, tags: list[str]) -> TagDirectory:
    latest = _read_latest(path)
    if latest in tags:
        return TagDirectory(path / latest, tuple(tag for tag in tags if tag != latest))
    if len(tags) == 1:
        note = (
            f"{path} has no {LATEST[0]} file"
            if latest is None
            else f"{path / LATEST[0]} names {latest!r}, which does not exist"
        )
        return TagDirectory(path / tags[0], (), (f"{note}; took its only tag, {tags[0]}",))
    why = "no file `latest`" if latest is None else f"a `latest` that names {latest!r}"
    raise BadRequest(
        f"{path} has {len(tags)} tags ({', '.join(tags)}) and {why}; pass --tag with one of them"
    )


def _read_latest(path: Path) -> str | None:
    for name in LATEST:
        file = path / name
        if not file.is_file():
            continue
        with source_file(file, is_source=False) as source, source.stream() as stream:
            data = stream.read(_LARGEST_LATEST + 1)
        try:
            text = data.decode().strip()
        except UnicodeDecodeError:
            raise BadFile(f"{file} is not text; pass --tag, or the tag directory itself") from None
        if len(data) <= _LARGEST_LATEST and "/" not in text and text not in ("", ".", ".."):
            return text
    return None
