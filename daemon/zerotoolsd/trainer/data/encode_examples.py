"""Encodes the examples of a job with its tokenizer, and counts them. The first rank of each node
does this once.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest
from zerotools.jobs.binding.durations import duration_text
from zerotools.jobs.datafiles.examples_and_documents import Record, read_records_of
from zerotools.jobs.jobfile_tables.data import SEPARATE, DataSpec
from zerotoolsd.trainer.data.encoding.encoded_example import Encoded, batches_of
from zerotoolsd.trainer.data.encoding.encoders import make_encoder
from zerotoolsd.trainer.data.example_store import write_examples
from zerotoolsd.trainer.data.tokenize_text import in_processes, load_tokenizer

BatchEncoder = Callable[[Sequence[Record]], list[Encoded]]


@dataclass(frozen=True)
class ModelInput:
    """The kind of input that a model takes.

    `encoder_decoder` is True if the model has an encoder and a decoder. `positions` is the largest
    number of positions (None: no limit).
    """

    encoder_decoder: bool
    positions: int | None


@dataclass
class ReadingStats:
    """Counts of the examples that were read. All lengths are in tokens.

    Attributes:
        cut: the number of examples that were too long and were cut.
        prompts_lost, responses_lost: how many tokens were cut from all prompts, and from all
            responses.
        sources_lost, targets_lost: the number of prompts, and of responses, that have no text left
            after cutting.
        changed: the number of examples in which the chat template left out a part of an answer.
        left_out: field that the template ignores -> number of examples with this field.
    """

    count: int = 0
    empty: int = 0
    tokens: int = 0
    longest: int = 0
    cut: int = 0
    prompts_lost: int = 0
    responses_lost: int = 0
    sources_lost: int = 0
    targets_lost: int = 0
    changed: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def add(self, example: Encoded) -> None:
        """Add one encoded example to the counts."""
        self.count += 1
        self.tokens += len(example.marked)
        self.longest = max(self.longest, len(example.marked))
        self.cut += example.source_lost + example.target_lost > 0
        self.prompts_lost += example.source_lost
        self.responses_lost += example.target_lost
        self.sources_lost += example.is_source_lost
        self.targets_lost += example.is_target_lost
        self.changed += example.is_changed
        for name in example.left_out:
            self.left_out[name] = self.left_out.get(name, 0) + 1

    def losses(self, data: DataSpec, positions: int | None) -> Iterator[str]:
        """Yield sentences about the parts of the data that the model will not be trained on.

        `positions` is the model's number of positions (None: no limit).
        """
        if cut := self.describe_cuts(data, positions):
            yield cut
        if self.changed:
            yield (
                "the chat template leaves out some of the assistant's text in "
                f"{count_text(self.changed, 'example')} of {self.count}, such as its reasoning"
            )
        if self.left_out:
            listed = ", ".join(f"{name} ({count})" for name, count in self.left_out.items())
            yield (
                "the chat template leaves out these fields of turns (in brackets: the number of "
                f"examples with the field): {listed}"
            )

    def describe_cuts(self, data: DataSpec, positions: int | None) -> str:
        """Return a sentence with the number of examples that were cut, the lost tokens, and the
        limits.

        The sentence is empty if no example was cut.
        """
        if not self.cut:
            return ""
        lost = [
            f"{tokens} of {what}"
            for tokens, what in ((self.prompts_lost, "prompts"), (self.responses_lost, "responses"))
            if tokens
        ]
        total = self.prompts_lost + self.responses_lost
        return (
            f"{count_text(self.cut, 'answer' if data.preferences else 'example')} of {self.count} "
            f"cut to "
            f"{' and '.join(_limits(data, positions))}, which loses {count_text(total, 'token')} "
            f"({', '.join(lost)})"
        )


def prepare_examples(
    paths: Sequence[Path],
    tokenizer: Any,
    data: DataSpec,
    reader: ModelInput,
    destination: Path,
    *,
    progress: ReadingProgress | None = None,
    processes: int = 0,
) -> ReadingStats:
    """Encode the examples of the files `paths`, write them to `destination`, and return statistics.

    `reader` describes the inputs of the model. If `processes` is not 0, that many child processes
    encode the examples. Examples without a prompt or without a response are left out.

    Raises:
        BadFile: a file has no readable examples; the message names the file and the line.
        BadRequest: there is no example, all examples were cut to nothing, or an example is too
            long.
    """
    stats = ReadingStats()
    progress = progress or ReadingProgress()
    records = (
        record
        for path in progress.through(paths)
        for record in read_records_of(path, data, seen=progress.seen)
    )
    make = make_loaded_encoder if processes else make_record_encoder
    named = Path(tokenizer.name_or_path) if processes else tokenizer
    batches = batches_of(_full(records, stats))
    arguments = (named, data, reader)
    encoded = in_processes(batches, make, arguments, processes, ended=progress.lost.append)
    examples = _counted(itertools.chain.from_iterable(encoded), data, reader, stats)
    write_examples(examples, destination, encoder_decoder=reader.encoder_decoder)
    check_stats(stats, paths, data, reader.positions)
    return stats


def encode_records(
    records: Iterable[Record],
    tokenizer: Any,
    data: DataSpec,
    reader: ModelInput,
    stats: ReadingStats,
) -> Iterator[Encoded]:
    """Encode `records`; empty records are left out.

    Yield the examples, and count them in `stats`.

    Raises:
        BadFile: the chat template rejects a record; the message names the file and the line.
        BadRequest: an example is too long, and the job does not allow cutting.
    """
    do = make_record_encoder(tokenizer, data, reader)
    batches = batches_of(_full(records, stats))
    yield from _counted(itertools.chain.from_iterable(map(do, batches)), data, reader, stats)


def make_record_encoder(tokenizer: Any, data: DataSpec, reader: ModelInput) -> BatchEncoder:
    """Return a function that encodes a batch of records to a list of `Encoded`."""
    encoder = make_encoder(
        tokenizer,
        data,
        encoder_decoder=reader.encoder_decoder,
        positions=reader.positions,
    )
    return lambda batch: list(encoder.batch(batch))


def make_loaded_encoder(directory: Path, data: DataSpec, reader: ModelInput) -> BatchEncoder:
    """Load the tokenizer in `directory`, and return the result of `make_record_encoder` for it."""
    return make_record_encoder(load_tokenizer(directory), data, reader)


def _counted(
    examples: Iterable[Encoded], data: DataSpec, reader: ModelInput, stats: ReadingStats
) -> Iterator[Encoded]:
    for example in examples:
        stats.add(example)
        if data.truncation == SEPARATE:
            _check_length(example, data, reader)
        yield example


def _full(records: Iterable[Record], stats: ReadingStats) -> Iterator[Record]:
    for record in records:
        if record.is_empty:
            stats.empty += 1
        else:
            yield record


def _check_length(example: Encoded, data: DataSpec, reader: ModelInput) -> None:
    source, target = example.split, len(example.marked) - example.split
    lengths = [source, target] if reader.encoder_decoder else [source + target - 1]
    longest, parts = max(lengths), f"{source} of the prompt and {target} of the response"
    if reader.positions is not None and longest > reader.positions:
        raise BadRequest(
            f"{example.place}: has {parts}, but the model has only {reader.positions} positions: "
            f"lower data.max_source_length ({data.max_source_length}) or data.max_target_length "
            f"({data.max_target_length})"
        )
    if data.packing and longest > (data.sequence_length or longest):
        raise BadRequest(
            f"{example.place}: has {parts}, but a packed sequence has data.sequence_length = "
            f"{data.sequence_length} tokens: raise this key, or cut the examples with "
            "data.max_source_length and data.max_target_length"
        )


def _limits(data: DataSpec, positions: int | None) -> list[str]:
    """Return the settings that limit the length of examples, as text, such as
    `data.sequence_length = 2048`.
    """
    found = [
        f"data.{name} = {getattr(data, name)}"
        for name in ("max_source_length", "max_target_length")
        if getattr(data, name) is not None
    ]
    if data.truncation == SEPARATE:
        return found
    if data.sequence_length is not None:
        return [*found, f"data.sequence_length = {data.sequence_length}"]
    return [*found, f"the model's {positions} positions"] if positions is not None else found


def check_stats(
    stats: ReadingStats, paths: Sequence[Path], data: DataSpec, positions: int | None
) -> None:
    """Check that at least one usable example was read.

    Raises:
        BadRequest: there is no example, or all examples were cut to nothing.
    """
    where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    if not stats.count and not stats.empty:
        raise BadRequest(f"{where}: contains no examples")
    if not stats.count:
        raise BadRequest(
            f"{where}: each of the {stats.empty} examples has an empty prompt or response"
        )
    for lost, what, key in (
        (stats.sources_lost, "prompt", "max_source_length"),
        (stats.targets_lost, "response", "max_target_length"),
    ):
        if lost == stats.count:
            own = getattr(data, key)
            limits = [f"data.{key} = {own}"] if own is not None else _limits(data, positions)
            raise BadRequest(
                f"{' and '.join(limits)}: this leaves no text of the {what} of any example in "
                f"{where}; raise the limit"
            )


MEGABYTE = 10**6


@dataclass
class ReadingProgress:
    """Counts the bytes of the files that have been read.

    One thread counts; other threads read the counts.
    """

    total: int = 0
    clock: Callable[[], float] = time.monotonic
    lost: list[int] = field(default_factory=list)
    """Exit statuses of tokenizing processes that ended early."""
    others: int = 0
    """Bytes that another job has written so far.

    This job waits for the cache entry that the other job makes.
    """
    _before: int = 0
    _within: int = 0
    _began: float | None = None
    _first: int = field(default=0, repr=False)

    def through(self, paths: Sequence[Path]) -> Iterator[Path]:
        """Yield each path of `paths`.

        A file counts as completely read when the next path is requested.
        """
        sizes = [_size(path) for path in paths]
        self.total += sum(sizes)
        self._began = self.clock()
        self._first = self._before
        for path, size in zip(paths, sizes, strict=True):
            yield path
            self._within = 0
            self._before += size

    def seen(self, nbytes: int) -> None:
        """Set the number of bytes that have been read of the current file to `nbytes`."""
        self._within = nbytes

    @property
    def done(self) -> int:
        """Number of bytes that have been read from all files."""
        return self._before + self._within

    def describe(self) -> str:
        """Return the progress as text: bytes read, rate, remaining time.

        The text is empty if no byte has been read.
        """
        if self._began is None or not self.done:
            waits = f"another job tokenises this data: {self.others / MEGABYTE:.0f} MB written"
            return waits if self.others else ""
        seconds = self.clock() - self._began
        rate = (self.done - self._first) / seconds if seconds > 0 else 0.0
        found = f"{self.done / MEGABYTE:.0f} of {self.total / MEGABYTE:.0f} MB"
        if not rate:
            return found
        left = max(0, self.total - self.done) / rate
        return f"{found}, {rate / MEGABYTE:.1f} MB/s, {duration_text(max(1, round(left)))} left"

    def report_until(self, is_over: Callable[[], bool], report: Callable[[str], None]) -> None:
        """Call `report` with the progress whenever bytes were read, until `is_over` returns True.

        If a read hangs, `report` is not called, so the user sees that there is no progress.
        """
        before = (0, 0)
        while not is_over():
            if (now := (self.done, self.others)) != before:
                report(self.describe())
                before = now


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # its reader reports the error
        return 0
