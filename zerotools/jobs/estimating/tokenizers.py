"""The processes that tokenise a job's data before it trains, in addition to rank 0: their number
and their host memory."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from zerotools.core.counts import bytes_of
from zerotools.jobs.tables.data import BYTES, kind_of, patterns_of, tokenizer_of
from zerotools.jobs.tables.spec import JobSpec

BYTES_FOR_EACH = 16 << 20
"""A process takes two seconds to begin, and reads about so much in ten."""
MOST_PROCESSES = 16
MEMORY_FOR_EACH = 1 << 30
"""Of a job's limit of memory, and of the machine; a process takes less than a third of it."""
PROCESS_BYTES = 300 << 20
"""Host memory of one process: libraries, a tokenizer of 150,000 tokens, and the words so far.
With 16,000 tokens it is half as much."""
MOST_FILES = 1000
"""The most files to get a size of, because the file system may be slow."""


def count_for(nbytes: int, memory_limit: int | None = None) -> int:
    """Return how many processes are to tokenise so much text; 0: the rank does it."""
    cores = len(os.sched_getaffinity(0))
    fits = MOST_PROCESSES if memory_limit is None else memory_limit // MEMORY_FOR_EACH
    count = min(cores, MOST_PROCESSES, nbytes // BYTES_FOR_EACH, fits)
    return count if count > 1 else 0


def memory_limit_of(spec: JobSpec) -> int:
    """Return the bytes of host memory that the job may use: its limit, or the memory of the
    host."""
    stated = (spec.limits.memory, spec.memory.host)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *(bytes_of(each) for each in stated if each is not None)])


def tokenizing_bytes(spec: JobSpec) -> int:
    """Return the host memory that these processes take together, the data not being in the cache.
    They have ended when the job trains."""
    named = tokenizer_of(spec.data, spec.model.path)
    if named in (None, BYTES) or kind_of(spec.data) == "tokens":
        return 0
    patterns = (*patterns_of(spec.data), *spec.eval.files)
    nbytes = 0
    for size in itertools.islice(_sizes(patterns), MOST_FILES):
        nbytes += size
        if nbytes >= MOST_PROCESSES * BYTES_FOR_EACH:
            break
    return PROCESS_BYTES * count_for(nbytes, memory_limit_of(spec))


def _sizes(patterns: Iterable[str]) -> Iterator[int]:
    """Yield the sizes of files; a pattern with ** may walk a whole disk, and is left out."""
    for pattern in patterns:
        if "**" in pattern:
            continue
        named = [pattern] if Path(pattern).exists() else glob.iglob(pattern)  # noqa: PTH207
        for path in map(Path, named):
            try:
                yield path.stat().st_size
            except OSError:  # said by whoever reads it
                continue
