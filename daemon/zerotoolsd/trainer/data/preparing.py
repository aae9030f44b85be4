"""Examples through a tokenizer, once, and what there is to say of them. Rank 0 does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.jobs.datafiles.example_files import TextExample, read_examples
from zerotools.jobs.tables.data import DataSpec
from zerotoolsd.trainer.data.encoding import Encoded, Encoder, make_encoder
from zerotoolsd.trainer.data.examplestore import Pair, write_examples


@dataclass(frozen=True)
class ModelInput:
    """How the model reads: whether it has an encoder, and how many positions (None: any)."""

    encoder_decoder: bool
    positions: int | None


@dataclass
class ReadingStats:
    """What came of reading examples; lengths are in tokens."""

    count: int = 0
    empty: int = 0
    tokens: int = 0
    sources_lost: int = 0
    targets_lost: int = 0


def prepare_examples(
    paths: Sequence[Path],
    tokenizer: Any,
    data: DataSpec,
    reader: ModelInput,
    destination: Path,
) -> ReadingStats:
    """Write the tokenised examples of `paths` to `destination`.

    Examples without a prompt or without a response are left out.

    Raises:
        BadFile: a file cannot be read as examples; file and line are named.
        BadRequest: there is no example, nothing is left of any, or one is too long.
    """
    encoder = make_encoder(tokenizer, data, encoder_decoder=reader.encoder_decoder)
    survey = ReadingStats()
    survey.count = write_examples(_pairs(paths, encoder, data, reader, survey), destination)
    _check(survey, paths, data)
    return survey


def _pairs(
    paths: Sequence[Path],
    encoder: Encoder,
    data: DataSpec,
    reader: ModelInput,
    survey: ReadingStats,
) -> Iterator[Pair]:
    for example in encoder.encoded(_full(paths, data, survey)):
        survey.tokens += len(example.source) + len(example.target)
        survey.sources_lost += example.is_source_lost
        survey.targets_lost += example.is_target_lost
        _check_length(example, data, reader)
        yield example.source, example.target


def _full(paths: Sequence[Path], data: DataSpec, survey: ReadingStats) -> Iterator[TextExample]:
    for path in paths:
        for record in read_examples(path, data):
            if record.is_empty:
                survey.empty += 1
            else:
                yield record


def _check_length(example: Encoded, data: DataSpec, reader: ModelInput) -> None:
    source, target = len(example.source), len(example.target)
    lengths = [source, target] if reader.encoder_decoder else [source + target - 1]
    longest, parts = max(lengths), f"{source} of the prompt and {target} of the response"
    if reader.positions is not None and longest > reader.positions:
        raise BadRequest(
            f"{example.record.place}: has {parts}, and the model has {reader.positions} positions: "
            f"lower data.max_source_length ({data.max_source_length}) or data.max_target_length "
            f"({data.max_target_length})"
        )
    if data.packing and longest > data.sequence_length:
        raise BadRequest(
            f"{example.record.place}: has {parts}, and a packed sequence has "
            f"data.sequence_length = {data.sequence_length}: raise it, or cut the examples with "
            "data.max_source_length and data.max_target_length"
        )


def _check(survey: ReadingStats, paths: Sequence[Path], data: DataSpec) -> None:
    where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    if not survey.count and not survey.empty:
        raise BadRequest(f"{where}: contains no examples")
    if not survey.count:
        raise BadRequest(
            f'{where}: each of the {survey.empty} examples has an empty "{data.prompt_column}" or '
            f'"{data.response_column}"'
        )
    for lost, key, column in (
        (survey.sources_lost, "max_source_length", data.prompt_column),
        (survey.targets_lost, "max_target_length", data.response_column),
    ):
        if lost == survey.count:
            raise BadRequest(
                f'data.{key} = {getattr(data, key)} removes the whole "{column}" of every '
                f"example in {where}: raise it"
            )
