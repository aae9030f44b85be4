"""Compute the number and the host memory of the child processes that tokenise a job's data for
rank 0.
"""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.jobs.jobfile_tables.data import BYTES, kind_of, patterns_of, tokenizer_of
from zerotools.jobs.jobfile_tables.spec import JobSpec

BYTES_FOR_EACH = 16 << 20
"""The smallest amount of text, in bytes, for which a process is worth its start.

A process takes two seconds to start, and tokenises this amount in about ten.
"""
MOST_PROCESSES = 16
MEMORY_FOR_EACH = 1 << 30
"""The bytes of the job's memory limit that each process needs. The limit divided by this number is
the largest number of processes. A process uses less than a third of these bytes.
"""
PROCESS_BYTES = 300 << 20
"""The host memory of one tokenising process, in bytes: libraries, a tokenizer with 150,000
tokens, and its cache of words. A tokenizer with 16,000 tokens needs half as much.
"""
MOST_FILES = 1000
"""Sizes are read of at most this many files, because the file system may be slow."""


def count_for(nbytes: int, memory_limit: int | None = None) -> int:
    """Return the number of processes that tokenise `nbytes` bytes of text. 0 means that rank 0
    tokenises the text itself. `memory_limit` is the job's limit of host memory in bytes.
    """
    cores = len(os.sched_getaffinity(0))
    fits = MOST_PROCESSES if memory_limit is None else memory_limit // MEMORY_FOR_EACH
    count = min(cores, MOST_PROCESSES, nbytes // BYTES_FOR_EACH, fits)
    return count if count > 1 else 0


def memory_limit_of(spec: JobSpec) -> int:
    """Return the host memory that the job may use, in bytes: the smallest of its limits and the
    machine's memory.
    """
    stated = (spec.limits.memory, spec.memory.host)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *(bytes_of(each) for each in stated if each is not None)])


def tokenizing_bytes(spec: JobSpec) -> int:
    """Return the host memory of all tokenising processes together, in bytes.

    The memory is needed only before the training begins, and only if the tokenised data is not in
    the cache.
    """
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
    """Yield the size in bytes of each file that the patterns match.

    A pattern with ** is left out, because it may search a whole disk.
    """
    for pattern in patterns:
        if "**" in pattern:
            continue
        named = [pattern] if Path(pattern).exists() else glob.iglob(pattern)  # noqa: PTH207
        for path in map(Path, named):
            try:
                yield path.stat().st_size
            except OSError:  # the reader of the file reports this
                continue
