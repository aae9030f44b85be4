"""Read a Megatron checkpoint of any kind."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.formats.megatron.file_names import RANK, RANK_FILES
from zerotools.formats.megatron.legacy_ranks.read_rank_files import read_ranks
from zerotools.formats.megatron.read_torch_dist import read_directory
from zerotools.io.files.directory_entries import names_in


def read(path: Path) -> Checkpoint:
    """Return the checkpoint in the directory `path`.

    If zerotools recognises this kind of checkpoint but does not read it, `Origin.refusal` has the
    reason.

    Raises:
        BadRequest: the directory does not exist.
        BadFile: the files are damaged, or contradict each other.
        Unsupported: it is unknown how a tensor is divided among the ranks.
    """
    if not path.is_dir():
        raise BadRequest(f"{path} is not a directory; name the directory of the checkpoint")
    names = names_in(path)
    if any(map(RANK.fullmatch, names)) or names & {*RANK_FILES}:
        return read_ranks(path)
    return read_directory(path)
