"""Check the URLs of object stores in a job file. This module does not access the stores."""

from __future__ import annotations

from collections.abc import Iterator

from zerotools.core.errors import BadRequest
from zerotools.io.stores.parse_url import WRITTEN, is_url, path_of
from zerotools.runs.find_job_checkpoints import step_of


def why_not_written(url: str) -> Iterator[str]:
    """Yield each reason why a job cannot write to the object store URL `url`."""
    if not is_url(url):
        schemes = ", ".join(f"{each}://" for each in WRITTEN)
        yield f"{url!r:.200} is not a URL of a store that zerotools can write to ({schemes})"
        return
    try:
        path = path_of(url)
    except BadRequest as error:
        yield str(error)
        return
    scheme = url.partition(":")[0].lower()
    if scheme not in WRITTEN:
        yield (
            f"{path}: {scheme}:// is read-only here; give an address of "
            f"{', '.join(f'{each}://' for each in WRITTEN)}"
        )
    elif any(step_of(part) is not None for part in path.parts):
        yield f"{path} is inside a checkpoint, and is removed with it; give an address outside it"
    elif getattr(path, "is_root", False):
        yield f"{path} is a whole bucket; give a path in it, such as {path}/run"


def why_not_read(url: str) -> Iterator[str]:
    """Yield each reason why a job cannot read from the object store URL `url`."""
    try:
        path_of(url)
    except BadRequest as error:
        yield str(error)


def in_store(path: str | None) -> bool:
    """Return whether a path of a job is a URL of an object store."""
    return path is not None and is_url(path)
