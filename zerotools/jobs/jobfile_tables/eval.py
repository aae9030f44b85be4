"""`[eval]` of the job file: evaluation during training and after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key

PREDICTIONS = "predictions"
"""The name of the directory in `output_dir` for generated texts.

It has one file for each evaluation.
"""
MAX_NEW_TOKENS = 256
"""The default of `max_new_tokens`. Models with a maximum length of less than twice this number have
a smaller default.
"""
GENERATION_KEYS = ("max_predictions", "max_new_tokens", "num_beams")
"""Keys of `[eval]` that concern only the generation of texts."""
TASK_KEYS = ("task_dir", "few_shot", "limit")
"""Keys of `[eval]` that have an effect only with `tasks`."""


@dataclass(frozen=True, kw_only=True)
class EvalSpec:
    """`[eval]`: three kinds of evaluation: the loss and perplexity on data that is not trained on,
    the similarity of generated texts to the responses, and scores of benchmarks after the job has
    succeeded. Without `files`, `fraction` and `tasks`, the job has no evaluation.
    """

    files: tuple[str, ...] = key(
        "Files of the same kind as in `[data]`, read with the same settings. Paths or patterns.",
        default=(),
        path=True,
    )
    fraction: float = key(
        "Instead of `files`: the fraction of the training data that is held out for evaluation; "
        "`seed` determines which examples.",
        default=0.0,
        minimum=0,
    )
    every: int | None = key(
        "Steps between evaluations; default: only after the last step.", default=None, minimum=1
    )
    batch_size: int | None = key(
        "Sequences in one forward pass of one rank; default: `train.micro_batch_size`, else 1. "
        "For `tasks`: requests in one forward pass; default: 1.",
        default=None,
        minimum=1,
    )
    max_sequences: int | None = key(
        "Number of sequences to evaluate on (the first ones); default: all.",
        default=None,
        minimum=1,
    )
    predict_with_generate: bool = key(
        "Also generate text from the prompts, score it against the responses (ROUGE-1, ROUGE-2, "
        "ROUGE-L and BLEU) and write it to a file. `data.examples` only; needs rouge_score and "
        "sacrebleu in the ranks' interpreter.",
        default=False,
    )
    max_predictions: int | None = key(
        "Number of prompts to generate text from (the first ones); default: all.",
        default=None,
        minimum=1,
    )
    max_new_tokens: int | None = key(
        "Maximum number of tokens to generate; default: 256, or half of the model's maximum "
        "length if that is less.",
        default=None,
        minimum=1,
    )
    num_beams: int = key(
        "Number of beams in beam search; 1: greedy search.",
        default=1,
        minimum=1,
    )
    tasks: tuple[str, ...] = key(
        "Tasks, groups or tags of lm-evaluation-harness, such as `hellaswag`. When the job "
        "has succeeded, a separate job evaluates the newest checkpoint on them. Needs "
        "`lm_eval` in the job's `python`. See [evaluate on "
        "benchmarks](../how-to/evaluate-on-benchmarks.md).",
        default=(),
        stored_default=(),
    )
    task_dir: str | None = key(
        "A directory with your tasks, as YAML files of lm-evaluation-harness (`--include_path`).",
        default=None,
        stored_default=None,
        path=True,
    )
    few_shot: int | None = key(
        "Examples before each question of `tasks` (`--num_fewshot`); default: the number that "
        "each task sets.",
        default=None,
        stored_default=None,
        minimum=0,
    )
    limit: float | None = key(
        "Number of questions of each task, or a fraction of its questions if below 1 (`--limit`); "
        "default: all.",
        default=None,
        stored_default=None,
    )

    @property
    def has_data(self) -> bool:
        """True if the loss on evaluation data is computed during training."""
        return bool(self.files or self.fraction)


def check_eval(spec: EvalSpec) -> Iterator[str]:
    """Yield the problems in `[eval]` that do not depend on other tables."""
    if spec.files and spec.fraction:
        yield "eval: eval.files and eval.fraction cannot be combined; leave one out"
    if spec.fraction >= 1:
        yield f"eval.fraction = {spec.fraction}: must be less than 1"
    without: dict[str, Any] = {"tasks": (), **dict.fromkeys(TASK_KEYS)}
    of_data = replace(spec, **without, batch_size=None if spec.tasks else spec.batch_size)
    if of_data != EvalSpec() and not spec.has_data:
        yield "eval: needs eval.files or eval.fraction; set one of them"
    yield from _check_generation(spec)
    yield from _check_tasks(spec)


def _check_tasks(spec: EvalSpec) -> Iterator[str]:
    if not spec.tasks:
        for name in TASK_KEYS:
            if (value := getattr(spec, name)) is not None:
                yield (
                    f"eval.{name} = {format_value(value)}: has an effect only with eval.tasks; "
                    f"set eval.tasks, or remove eval.{name}"
                )
        return
    for name in spec.tasks:
        if not name or set(name) & set(", \t\n"):
            yield f"eval.tasks: {format_value(name)} is not a name; write one task in each string"
    if len(set(spec.tasks)) != len(spec.tasks):
        yield f"eval.tasks = {format_value(spec.tasks)}: names a task twice"
    if spec.limit is not None and not (0 < spec.limit < 1 or spec.limit == int(spec.limit) >= 1):
        yield (
            f"eval.limit = {format_value(spec.limit)}: must be a whole number of questions, or a "
            "share "
            "between 0 and 1"
        )


def _check_generation(spec: EvalSpec) -> Iterator[str]:
    if not spec.predict_with_generate:
        defaults = {item.name: item.default for item in fields(EvalSpec)}
        for name in GENERATION_KEYS:
            value = getattr(spec, name)
            if value != defaults[name]:
                yield (
                    f"eval.{name} = {format_value(value)}: the evaluation generates no text; set "
                    f"eval.predict_with_generate = true, or remove eval.{name}"
                )
        return
    most, used = spec.max_predictions, spec.max_sequences
    if most is not None and used is not None and most > used:
        yield (
            f"eval.max_predictions = {most}: is more than eval.max_sequences, which is {used}; "
            "lower eval.max_predictions, or remove it"
        )
