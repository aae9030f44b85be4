"""Judges whether a checkpoint is whole.

A checkpoint that the finder found must be whole for the readers of zerotools. A checkpoint that the
program reported may have any layout. Only damaged files count against it: a truncated file, or a
missing one of several.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from zerotools.core.errors import ZerotoolsError
from zerotools.formats import FORMATS
from zerotools.formats.detect import formats_in
from zerotools.formats.safetensors.header import read_header
from zerotools.formats.safetensors.model_files import choose_files
from zerotools.io.files.listing import names_in
from zerotools.io.huggingface.numbered_files import refuse_missing
from zerotools.ops.inspection.completeness import (
    Completeness,
    check_completeness,
    damages,
    torn_files,
)
from zerotoolsd.children.checkpoint_finder.candidates import Candidate
from zerotoolsd.supervisor.transient_errors import is_transient

_TENSORS = ".safetensors"


def judge(found: Candidate) -> Completeness:
    """Judge a checkpoint that was found.

    Raises OSError for a transient error of the disk or the file server.
    """
    return _guarded(lambda: _of_separate_files(found) or check_completeness(found.path), found.path)


def damage_of(path: Path) -> str | None:
    """Return a sentence on the damage of a checkpoint that the program reported, or None.

    Raises OSError, as `judge`.
    """
    return _guarded(lambda: Completeness(True, problem=next(damages(path), None)), path).problem


def _guarded(look: Callable[[], Completeness], path: Path) -> Completeness:
    try:
        return look()
    except OSError as error:
        if is_transient(error):
            raise
        return Completeness(True, problem=f"{path}: {error.strerror}")
    except ZerotoolsError as error:
        return Completeness(True, problem=str(error))
    except Exception as error:  # one file that confuses a reader must not hide all the others
        return Completeness(True, problem=f"{path}: {type(error).__name__}: {error}")


def _of_separate_files(found: Candidate) -> Completeness | None:
    """Judge a directory of safetensors without an index; None for any other.

    zerotools reads it as one model, with each tensor name in one file. Here each file may be a
    model, such as one and its average.
    """
    path = found.path
    if not path.is_dir():
        return None
    names = names_in(path) - found.others
    tensors = sorted(name for name in names if name.endswith(_TENSORS))
    if len(tensors) < 2 or formats_in(path, names, FORMATS)[:1] != ["safetensors"]:
        return None
    chosen = choose_files(path)
    if chosen.weight_map is not None or not set(tensors) <= set(chosen.names):
        return None
    headers = [read_header(path / name) for name in tensors]
    if any(header.starts is not None for header in headers):
        return None
    refuse_missing(path, tensors)
    return Completeness(True, problem=next(torn_files(path), None))
