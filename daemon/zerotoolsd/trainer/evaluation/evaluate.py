"""Evaluates a model on held-out data: loss, perplexity and the scores of generated text.

The results are the same for any number of ranks. For text generation, the batch of an example
depends only on the number of the example, and with n ranks, each rank takes every n-th batch. So
the contents and the padding of a batch do not depend on the number of ranks.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.files.exclusive_directory import new_text_file
from zerotools.io.files.open_files import sync_directory
from zerotools.jobs.jobfile_tables.data import SEPARATE, tokenizer_of
from zerotools.jobs.jobfile_tables.eval import PREDICTIONS
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs import find_job_checkpoints
from zerotoolsd.trainer.data.example_pools import Example, ExamplePool
from zerotoolsd.trainer.data.example_store import Preference
from zerotoolsd.trainer.data.tokenize_text import load_tokenizer
from zerotoolsd.trainer.data.training_data import positions_of
from zerotoolsd.trainer.engine.engine_interface import Engine, Rewards
from zerotoolsd.trainer.engine.text_generation import Decoding, Ids, make_decoding, split_prompt
from zerotoolsd.trainer.evaluation.scores import Scores, check_libraries, score_predictions
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.rank.process_group import WorldGroup

LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation.

    `loss` is the average over all `tokens` of all `sequences`. For preferences, `loss` and
    `rewards` are averages over the pairs. `seconds` is the time in which the loss was computed.
    `predicted` is the result of text generation; None if the job does not generate text.
    """

    loss: float
    sequences: int
    tokens: int
    seconds: float
    predicted: GenerationResult | None = None
    rewards: Rewards | None = None

    @property
    def perplexity(self) -> float | None:
        """The exponential of the loss.

        It is None if the exponential is not finite, and for preferences, because the DPO loss is
        not a likelihood of text.
        """
        if self.rewards is not None:
            return None
        is_small = math.isfinite(self.loss) and self.loss < LARGEST_EXPONENT
        return math.exp(self.loss) if is_small else None


@dataclass(frozen=True)
class Evaluation:
    """Evaluates the model of a run after some of its steps: the last, and every `every` steps if
    set.

    An evaluation reads the first `sequences` examples of `pool`. With n data-parallel ranks, each
    rank evaluates every n-th example.
    """

    pool: ExamplePool
    every: int | None
    batch_size: int
    sequences: int
    predictions: TextGeneration | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the evaluation, as lines for the log."""
        note = self.predictions.note() if self.predictions is not None else None
        return (note,) if note else ()

    def is_due(self, step: int, steps: int) -> bool:
        """Return whether an evaluation follows step `step`, counted from 1, of a run with
        `steps` steps.
        """
        return step == steps or (self.every is not None and step % self.every == 0)

    def run(
        self,
        engine: Engine,
        group: WorldGroup,
        step: int,
        alive: Callable[[], None],
        stop_asked: Callable[[], bool],
    ) -> EvaluationResult | None:
        """Evaluate the model after step `step`, and return the result.

        All ranks call it together. `alive` is called after each batch, to show that the rank is not
        stalled. If `stop_asked` returns True on any rank, the evaluation ends and the result is
        None: the remaining time is needed to save a checkpoint.
        """
        started = time.monotonic()
        loss, tokens, rewards = 0.0, 0, [0.0] * 3
        of_pairs = isinstance(self.pool.example(0), Preference)
        for examples in self._batches(group.rank.data_rank, group.rank.data_ranks):
            summed = engine.evaluate(examples)
            loss += summed.loss
            tokens += summed.tokens
            if summed.rewards is not None:
                rewards = [a + b for a, b in zip(rewards, summed.rewards.sums(), strict=True)]
            alive()
            if group.total([float(stop_asked())])[0]:
                return None
        alike = group.rank.tensor_ranks
        totals = group.total([loss, float(tokens), *rewards])
        total, count, *sums = (each / alike for each in totals)
        seconds = time.monotonic() - started
        predicted = None
        if self.predictions is not None:
            predicted = self.predictions.run(engine, group, step, alive, stop_asked)
            if predicted is None:
                return None
        mean = total / max(1.0, count)
        means = Rewards(*(each / max(1.0, count) for each in sums)) if of_pairs else None
        return EvaluationResult(mean, self.sequences, int(count), seconds, predicted, means)

    def _batches(self, data_rank: int, data_ranks: int) -> Iterator[list[Example]]:
        """Yield the batches of examples of the data-parallel rank `data_rank` of `data_ranks`.

        All ranks get the same number of batches, because each forward pass needs all ranks.
        """
        numbers = range(data_rank, self.sequences, data_ranks)
        for first in range(0, math.ceil(self.sequences / data_ranks), self.batch_size):
            chosen = numbers[first : first + self.batch_size]
            # A rank without remaining examples takes part without being counted.
            yield [self.pool.example(n) for n in chosen] or [self.pool.example(0).without_targets()]


def make_evaluation(
    spec: JobSpec, pool: ExamplePool | None, meta_model: MetaModel, group: WorldGroup
) -> Evaluation | None:
    """Return the evaluation of a job; None if it has no evaluation data.

    Raises:
        ZerotoolsError: the job generates text, but the model cannot generate text of this length,
            or no text at all. It is raised on every rank.
    """
    if pool is None:
        return None
    size = spec.eval.batch_size or spec.train.micro_batch_size or 1
    most = spec.eval.max_sequences
    count = len(pool) if most is None else min(most, len(pool))
    predictions = make_text_generation(spec, pool, meta_model, group, count, size)
    return Evaluation(pool, spec.eval.every, size, count, predictions)


@dataclass(frozen=True)
class GenerationResult:
    """The scores of `examples` generated texts, and the time that generation took, in seconds.

    `path` is the file with the texts. If it could not be written, `path` is None and `problem` is
    the reason.
    """

    scores: Scores
    examples: int
    seconds: float
    path: str | None
    problem: str | None = None

    def fields(self) -> dict[str, Any]:
        """Return the values for metrics and reports, keyed by name."""
        return {
            **self.scores.values(),
            "bleu_tokenizer": self.scores.tokenizer,
            "predictions": self.path,
            "predicted": self.examples,
            "predicted_seconds": self.seconds,
        }

    def __str__(self) -> str:
        where = self.path or f"texts not written ({self.problem}); training continues"
        return f"{self.scores}  ({self.examples} examples, {self.seconds:.2f} s)  {where}"


@dataclass(frozen=True)
class TextGeneration:
    """Generates texts for an evaluation, after the prompts of the first `count` examples of
    `pool`.

    If a prompt is longer than `longest_prompt` (None: no limit), its last tokens are used. Only
    rank 0 needs the `tokenizer`.
    """

    pool: ExamplePool
    count: int
    batch_size: int
    encoder_decoder: bool
    decoding: Decoding
    directory: Path
    tokenizer: Any
    longest_prompt: int | None = None

    def run(
        self,
        engine: Engine,
        group: WorldGroup,
        step: int,
        alive: Callable[[], None],
        stop_asked: Callable[[], bool],
    ) -> GenerationResult | None:
        """Generate texts after step `step`, score them, and write them to a file.

        Return the scores. All ranks call it together. `alive` and `stop_asked` are called after
        each batch. If `stop_asked` returns True on any rank, the generation ends and the result is
        None.
        """
        started = time.monotonic()
        said: list[Ids] = []
        for numbers in self._batches(group.rank.data_rank, group.rank.data_ranks):
            # A rank without remaining examples takes part without being counted.
            prompts = [self._pair(number)[0] for number in numbers or [0]]
            found = engine.generate(prompts, self.decoding)[: len(numbers)]
            said_here = found if group.rank.leads_same_data else []
            parts = group.gathered((said_here, stop_asked()))
            if any(stop for _, stop in parts):
                return None
            # In the order of the examples, because the ranks did one batch after the other.
            said += [ids for part, _ in parts for ids in part]
            alive()
        seconds = time.monotonic() - started
        return group.decided_by_rank_zero(lambda: self._judged(said, step, seconds))

    def _batches(self, data_rank: int, data_ranks: int) -> Iterator[Sequence[int]]:
        """Yield the example numbers of each batch of the data-parallel rank `data_rank` of
        `data_ranks`.

        All ranks get the same number of batches, and a batch may be empty.
        """
        numbers, size = range(self.count), self.batch_size
        for first in range(0, self.count, size * data_ranks):
            yield numbers[first + data_rank * size : first + (data_rank + 1) * size]

    def _pair(self, number: int) -> tuple[Ids, Ids]:
        prompt, response = split_prompt(
            self.pool.example(number), encoder_decoder=self.encoder_decoder
        )
        return prompt[-(self.longest_prompt or len(prompt)) :], response

    def _judged(self, said: Sequence[Ids], step: int, seconds: float) -> GenerationResult:
        predictions = [self._text(ids) for ids in said]
        pairs = [self._pair(number) for number in range(self.count)]
        references = [self._text(response) for _, response in pairs]
        rows = (
            {
                "step": step,
                "example": number,
                "prompt": self.tokenizer.decode(pairs[number][0]),
                "reference": references[number],
                "prediction": predictions[number],
            }
            for number in range(self.count)
        )
        path = self.directory / f"{find_job_checkpoints.directory_name(step)}.jsonl"
        problem = write_rows(path, rows)
        written = None if problem else str(path)
        return GenerationResult(
            score_predictions(predictions, references), self.count, seconds, written, problem
        )

    def _text(self, ids: Ids) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text.strip()

    def note(self) -> str | None:
        """Return a note if prompts are cut so that the generated text fits; None if no prompt
        is cut.
        """
        if self.longest_prompt is None:
            return None
        lengths = [
            len(split_prompt(self.pool.example(number), encoder_decoder=False)[0])
            for number in range(self.count)
        ]
        lost = [length - self.longest_prompt for length in lengths if length > self.longest_prompt]
        if not lost:
            return None
        return (
            f"eval: {count_text(len(lost), 'prompt')} of {self.count} cut to the last "
            f"{self.longest_prompt} tokens, so that {self.decoding.max_new_tokens} tokens can be "
            f"generated (eval.max_new_tokens); {count_text(sum(lost), 'token')} lost"
        )

    def check_lengths(self, positions: int | None) -> None:
        """Check that each prompt and its generated text fit into the model's `positions` (None: no
        limit).

        Raises:
            BadRequest: the longest prompt and the longest generated text together do not fit.
        """
        new = self.decoding.max_new_tokens
        longest = 1
        if not self.encoder_decoder:
            longest = max(len(self._pair(number)[0]) for number in range(self.count))
        if positions is not None and longest + new > positions:
            where = (
                "the decoder begins with 1 token"
                if self.encoder_decoder
                else (f"the longest prompt has {longest} tokens")
            )
            raise BadRequest(
                f"eval.max_new_tokens = {new}: {where}, but the model has only {positions} "
                f"positions: set eval.max_new_tokens to {max(1, positions - longest)} at most, "
                "or lower data.sequence_length or data.max_source_length"
            )


def cuts_prompts(spec: JobSpec, config: Any) -> bool:
    """Return whether long prompts are cut so that the generated text fits. If not, long prompts are
    refused.
    """
    is_asked = spec.eval.max_new_tokens is not None or spec.data.truncation == SEPARATE
    return not is_asked and not config.is_encoder_decoder


def make_text_generation(
    spec: JobSpec,
    pool: ExamplePool,
    meta_model: MetaModel,
    group: WorldGroup,
    count: int,
    batch_size: int,
) -> TextGeneration | None:
    """Return the text generation of a job for the first `count` examples of `pool`.

    Returns None if the job does not generate text.

    Raises:
        ZerotoolsError: the model cannot generate text of this length, or no text at all; or a
            library is missing. It is raised on every rank.
    """
    if not spec.eval.predict_with_generate:
        return None
    model, config = meta_model.model, meta_model.config
    if not model.can_generate():
        raise Unsupported(
            "eval.predict_with_generate = true: transformers cannot generate text with "
            f"{type(model).__name__}; set eval.predict_with_generate = false"
        )
    tokenizers: list[Any] = []
    positions = positions_of(config)

    def decide() -> Decoding:
        check_libraries()
        tokenizers.append(load_tokenizer(Path(tokenizer_of(spec.data, spec.model.path) or "")))
        return make_decoding(spec, tokenizers[0], config, positions)

    decoding = group.decided_by_rank_zero(decide)
    predictions = TextGeneration(
        pool,
        min(count, spec.eval.max_predictions or count),
        batch_size,
        bool(config.is_encoder_decoder),
        decoding,
        Path(spec.output_dir or "") / PREDICTIONS,
        tokenizers[0] if tokenizers else None,
    )
    if cuts_prompts(spec, config) and positions is not None:
        predictions = replace(
            predictions, longest_prompt=max(1, positions - decoding.max_new_tokens)
        )
    group.decided_by_rank_zero(lambda: predictions.check_lengths(positions))
    return predictions


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Write `rows` to `path` as JSON lines. The file is complete, or it does not exist.

    Returns why the write failed; None if it succeeded.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_text_file(draft) as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        return f"{error.filename or path}: {error.strerror}"
    return None
