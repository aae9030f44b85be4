""".zerotools-output.json: the files that a command wrote, so that it may replace them later.

    {"schema": "zerotools.output/1", "command": "consolidate", "version": "0.2.0",
     "files": {"model.safetensors": {"size": 123, "mtime_ns": 456, "digest": "0a1b..."}},
     "algorithm": "xxh3-128/2^20", "digest": "2c3d..."}

An output is replaced only if the same command wrote every file in it, and no file has changed
since. Otherwise weights could be lost that a training run saved in this directory under the same
names.

If the output was read back after it was written, the marker also has the digest of each file, the
name of the algorithm, and a digest of the marker itself (docs/reference/digest-manifest.md).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.io.files.read_json import read_json
from zerotools.io.output.journal import is_of_journals
from zerotools.version import version

MARKER = ".zerotools-output.json"
SCHEMA = "zerotools.output/1"
_LARGEST = 2**28
# Some file systems keep times in steps of up to two seconds, and round them after a while.
_COARSEST_TIME = 2 * 10**9
_MAX_NAMED = 3
_WITHOUT_MARKER = "remove it to continue without the digests of the written files"


@dataclass(frozen=True)
class Written:
    """The record of an output: the files that `command` wrote, with their sizes in bytes and their
    digests in hexadecimal, keyed by name. `algorithm` is the algorithm of the digests."""

    command: str
    algorithm: str
    files: Mapping[str, tuple[int, str]]


def write_marker(
    directory: Path,
    command: str,
    digests: Mapping[str, str] | None = None,
    algorithm: str | None = None,
    made_of: str | None = None,
) -> None:
    """Write the marker of an output: `command` wrote every file below `directory`, with the known
    digests. The marker is flushed to the disk.

    `made_of` is text that identifies the inputs of the output.
    """
    files: dict[str, dict[str, Any]] = {}
    for path in _entries(directory):
        if path.is_dir() or path.name == MARKER or is_of_journals(path.name):
            continue
        status = path.stat()
        name = path.relative_to(directory).as_posix()
        files[name] = {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
        if digests and name in digests:
            files[name]["digest"] = digests[name]
    more = {} if made_of is None else {"made_of": made_of}
    with (directory / MARKER).open("w", encoding="utf-8") as file:
        file.write(marker_text(command, files, algorithm if digests else None, more))
        file.flush()
        os.fsync(file.fileno())


def marker_text(
    command: str,
    files: Mapping[str, Mapping[str, Any]],
    algorithm: str | None,
    more: Mapping[str, Any],
) -> str:
    """Return the text of the marker for an output with the files `files`. `more` has further keys
    of the marker. `algorithm` is the algorithm of the files' digests, or None if they have no
    digests.
    """
    tree = {"schema": SCHEMA, "command": command, "version": version(), **more, "files": files}
    if algorithm is not None:
        tree["algorithm"] = algorithm
        tree["digest"] = tree_digest(tree)
    return json.dumps(tree, indent=1) + "\n"


def run_of(directory: Path) -> str | None:
    """Return the id of the run that wrote the output `directory` in a store, according to its
    marker; None if no valid marker exists."""
    try:
        return str(_marker(directory).get("run"))
    except BadRequest:
        return None


def read_written(directory: Path) -> Written | None:
    """Return the files and digests of an output, according to its marker.

    Return None if the output has no marker, or was not read back, so that its marker has no
    digests.

    Raises:
        BadFile: the marker is damaged.
    """
    path = directory / MARKER
    try:
        tree = read_json(path, _LARGEST, is_source=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(f"{path} cannot be read: {error!s:.200}; {_WITHOUT_MARKER}") from None
    if not isinstance(tree, dict) or "digest" not in tree or tree.get("schema") != SCHEMA:
        return None
    found = tree.pop("digest")
    if found != tree_digest(tree):
        raise BadFile(
            f"{path} does not have the digest {found!r:.40} that it records: it is damaged or was "
            f"changed by hand; {_WITHOUT_MARKER}"
        )
    try:
        files = {
            str(name): (int(each["size"]), str(each["digest"]))
            for name, each in tree["files"].items()
            if "digest" in each and stays_below_root(name)
        }
        return Written(str(tree["command"]), str(tree["algorithm"]), files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFile(
            f"{path} is not a marker that zerotools wrote ({error!r:.200}); {_WITHOUT_MARKER}"
        ) from None


def was_made_of(directory: Path, made_of: str) -> bool:
    """Return whether `directory` is a complete output that was made from the inputs `made_of`,
    according to its marker.
    """
    try:
        return bool(_marker(directory).get("made_of") == made_of)
    except BadRequest:
        return False


def marked_files(directory: Path) -> set[str]:
    """Return the names of the files that the marker in `directory` lists. Raises BadRequest."""
    return {*_marker(directory)["files"]}


def is_in_output(path: Path) -> bool:
    """Return whether the file `path` belongs to an output, according to the marker next to it."""
    try:
        return path.name in _marker(path.parent)["files"]
    except BadRequest:
        return False


def check_replaceable(destination: Path, command: str) -> None:
    """Raise an error if `destination` is not a directory, or contains files that `command` did not
    write.

    Raises:
        BadRequest: names these files or another reason, and the action to take.
    """
    if destination.is_symlink():
        raise BadRequest(
            f"{destination} is a symbolic link, which --overwrite does not replace; name the "
            "directory itself, or remove the link"
        )
    if not destination.is_dir():
        raise BadRequest(
            f"{destination} is not a directory that zerotools wrote, so --overwrite does not "
            "replace it; remove it yourself, or choose another output"
        )
    if destination.is_mount():
        raise BadRequest(
            f"{destination} is a mount point, which cannot be replaced; name a directory inside it"
        )
    if is_empty(destination):
        return
    tree = _marker(destination)
    if tree["command"] != command:
        raise BadRequest(
            f"{destination} was written by zerotools {tree['command']}, so --overwrite of "
            f"zerotools {command} does not replace it; {_how_to_remove(destination)}"
        )
    foreign = [_named(destination, *found) for found in _foreign(destination, tree["files"])]
    if foreign:
        more = f" and {len(foreign) - _MAX_NAMED} more" if foreign[_MAX_NAMED:] else ""
        raise BadRequest(
            f"{destination} holds files that zerotools {command} did not write, so --overwrite "
            f"does not replace it: {', '.join(foreign[:_MAX_NAMED])}{more}; move them elsewhere, "
            "or choose another output"
        )


def remove_output(directory: Path) -> None:
    """Remove an output. Its marker is removed last, so that files which remain after a kill can be
    recognised. An output without a marker gets an empty one first.
    """
    with suppress(FileExistsError):
        (directory / MARKER).touch(exist_ok=False)
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != MARKER:
            entry.unlink()
    (directory / MARKER).unlink(missing_ok=True)
    directory.rmdir()


def is_empty(directory: Path) -> bool:
    return directory.is_dir() and not any(directory.iterdir())


def _marker(directory: Path) -> Any:
    try:
        tree: Any = read_json(directory / MARKER, _LARGEST, is_source=False)
    except FileNotFoundError:
        raise BadRequest(
            f"{directory} has no {MARKER}, the list of files that zerotools wrote (older "
            "versions did not write one), so --overwrite does not replace this directory; "
            f"{_how_to_remove(directory)}"
        ) from None
    except (OSError, BadFile, ValueError, RecursionError) as error:
        raise BadRequest(
            f"{directory / MARKER} cannot be read ({error!s:.200}), so --overwrite does not "
            f"replace {directory}; {_how_to_remove(directory)}"
        ) from None
    files = tree.get("files") if isinstance(tree, dict) else None
    if not isinstance(files, dict) or tree.get("schema") != SCHEMA or "command" not in tree:
        raise BadRequest(
            f"{directory / MARKER} does not have the schema {SCHEMA}, so --overwrite does not "
            f"replace {directory}; {_how_to_remove(directory)}"
        )
    return tree


def _how_to_remove(directory: Path) -> str:
    return (
        f"see its contents; if you do not need them, remove {directory} (rm -r) and run the "
        "command again; or choose another output"
    )


def _foreign(directory: Path, known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the fault of every entry in `directory` that differs from the marker's
    files `known`.
    """
    folders = {parent for name in known for parent in Path(name).parents}
    for path in _entries(directory):
        name = path.relative_to(directory)
        entry = known.get(name.as_posix())
        if path.is_dir() and not path.is_symlink():
            if name not in folders:
                yield f"{name}/", ""
        elif _is_own(name.as_posix()) and not path.is_symlink():
            continue
        elif entry is None or path.is_symlink():
            yield str(name), ""
        elif not _is_as_written(path.stat(), entry):
            yield str(name), " (changed since it was written)"


def _is_own(name: str) -> bool:
    """Return whether the name is the name of the marker or of a journal. A kill may leave a journal
    in a finished output.
    """
    return name == MARKER or is_of_journals(name)


def _is_as_written(status: os.stat_result, entry: Any) -> bool:
    if not isinstance(entry, dict) or status.st_size != entry.get("size"):
        return False
    time = entry.get("mtime_ns")
    return isinstance(time, int) and abs(status.st_mtime_ns - time) < _COARSEST_TIME


def _named(directory: Path, name: str, fault: str) -> str:
    return f"{directory / name}{'/' if name.endswith('/') else ''}{fault}"


def _entries(directory: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(directory):
        for name in sorted((*folders, *names)):
            yield Path(folder, name)


def tree_digest(tree: Mapping[str, Any]) -> str:
    """Return the XXH3 digest (128 bits, in hexadecimal) of a tree as JSON, with sorted keys and
    without spaces.
    """
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    # Not above: the training process imports this module, and its Python may not have xxhash.
    import xxhash

    return str(xxhash.xxh3_128(text.encode()).hexdigest())
