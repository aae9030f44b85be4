"""What the keys of `[data]` and `[eval]` demand of one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import PurePath

from zerotools.jobs.binding.bind import show
from zerotools.jobs.tables.data import DataSpec, EvalSpec
from zerotools.jobs.tables.spec import JobSpec

BYTES = "bytes"
KINDS = ("text", "tokens", "examples")
_OF_EXAMPLES = (
    "prompt_column",
    "response_column",
    "history_column",
    "max_source_length",
    "max_target_length",
    "chat_template",
    "packing",
)


def kind_of(data: DataSpec) -> str:
    """Which of `KINDS` the job is trained on."""
    return next((kind for kind in KINDS if getattr(data, kind)), "text")


def patterns_of(data: DataSpec) -> tuple[str, ...]:
    """The paths and patterns of the training data."""
    patterns: tuple[str, ...] = getattr(data, kind_of(data))
    return patterns


def tokenizer_of(spec: JobSpec) -> str | None:
    """The directory of the tokenizer; `BYTES` for one token per byte, None where there is none."""
    kind = kind_of(spec.data)
    if spec.data.tokenizer is not None:
        return spec.data.tokenizer
    if kind == "text":
        return BYTES
    return spec.model.path if kind == "examples" else None


def fixed_length(data: DataSpec) -> int | None:
    """The tokens of each sequence; None where each example is one of its own length."""
    return None if kind_of(data) == "examples" and not data.packing else data.sequence_length


def longest_sequence(data: DataSpec) -> int:
    """The most tokens that a sequence can have."""
    return fixed_length(data) or data.max_source_length + data.max_target_length


def check_data(spec: JobSpec) -> Iterator[str]:
    """What is wrong with `[data]` and `[eval]`."""
    data = spec.data
    given = [kind for kind in KINDS if getattr(data, kind)]
    if not given:
        yield "data: one of data.text, data.tokens and data.examples must name a file or pattern"
    if len(given) > 1:
        names = " and ".join(f"data.{kind}" for kind in given)
        yield f"data: {names} exclude one another; leave all but one out"
    if len(given) == 1:
        yield from _check_strangers(data, given[0])
        yield from _check_kind(spec, given[0])
    yield from _check_eval(spec.eval)


def _check_strangers(data: DataSpec, kind: str) -> Iterator[str]:
    """Keys that say something about another kind of data."""
    defaults = {item.name: item.default for item in fields(data)}
    strange = [] if kind == "examples" else [f"data.{name}" for name in _OF_EXAMPLES]
    strange += [] if kind == "tokens" else ["data.token_type"]
    for key in strange:
        name = key.partition(".")[2]
        value = getattr(data, name)
        if value != defaults[name]:
            yield f"{key} = {show(value)}: has no place beside data.{kind}; leave it out"


def _check_kind(spec: JobSpec, kind: str) -> Iterator[str]:
    data = spec.data
    if kind == "tokens" and data.token_type is None:
        for name in (*data.tokens, *spec.eval.files):
            if PurePath(name).suffix != ".npy":
                yield f"data.token_type: is missing; {name} does not say what type its ids have"
                break
    if kind == "tokens" and data.tokenizer == BYTES:
        yield 'data.tokenizer = "bytes": has no place beside data.tokens; leave it out'
    if kind != "examples":
        return
    if tokenizer_of(spec) in (None, BYTES):
        yield (
            "data.tokenizer: data.examples needs the path of a Hugging Face tokenizer, as there is "
            "no model.path that could have one"
        )
    columns = [data.prompt_column, data.response_column, data.history_column]
    if len({name for name in columns if name is not None}) < len([c for c in columns if c]):
        yield (
            "data: prompt_column, response_column and history_column must differ, and are "
            f"{', '.join(show(name) for name in columns if name is not None)}"
        )


def _check_eval(spec: EvalSpec) -> Iterator[str]:
    if spec.files and spec.fraction:
        yield "eval: eval.files and eval.fraction exclude one another; leave one out"
    if spec.fraction >= 1:
        yield f"eval.fraction = {spec.fraction}: must be less than 1"
    if spec != EvalSpec() and not spec.files and not spec.fraction:
        yield "eval: one of eval.files and eval.fraction is needed"


def with_data_paths(spec: JobSpec, fix: Callable[[str, str], str]) -> JobSpec:
    """`spec` with every path in `[data]` and `[eval]` passed through `fix`."""
    data, tokenizer = spec.data, spec.data.tokenizer

    def all_of(name: str, paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(fix(name, path) for path in paths)

    if tokenizer not in (None, BYTES):
        assert tokenizer is not None
        tokenizer = fix("data.tokenizer", tokenizer)
    data = replace(
        data,
        text=all_of("data.text", data.text),
        tokens=all_of("data.tokens", data.tokens),
        examples=all_of("data.examples", data.examples),
        tokenizer=tokenizer,
    )
    return replace(
        spec, data=data, eval=replace(spec.eval, files=all_of("eval.files", spec.eval.files))
    )
