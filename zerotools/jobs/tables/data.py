"""`[data]`: what a job is trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from zerotools.jobs.binding.bind import show
from zerotools.jobs.binding.declaration import key

BYTES = "bytes"
"""`tokenizer`: one token per byte."""
KINDS = ("text", "tokens", "examples")
TOKEN_TYPES = ("uint16", "uint32", "int32", "int64")
CHAT_TEMPLATE = ("auto", "on", "off")
_OF_EXAMPLES = (
    "prompt_column",
    "response_column",
    "history_column",
    "max_source_length",
    "max_target_length",
    "chat_template",
    "packing",
)


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """`[data]`: what it is trained on. One of `text`, `tokens` and `examples`."""

    text: tuple[str, ...] = key(
        "UTF-8 text files: paths or glob patterns (`**` too), in sorted order.",
        default=(),
        path=True,
    )
    tokens: tuple[str, ...] = key(
        "Files of token ids: `.npy` (one dimension), or any other name for bare little-endian "
        "numbers of `token_type`. Paths or patterns.",
        default=(),
        path=True,
    )
    token_type: str | None = key(
        "The type of the ids in `tokens`; `.npy` files name it in their header.",
        default=None,
        allowed=TOKEN_TYPES,
    )
    examples: tuple[str, ...] = key(
        "Files of examples to fine-tune on: one JSON object per line (also where the file is "
        "called `.json`), or one JSON array of objects. Paths or patterns.",
        default=(),
        path=True,
    )
    prompt_column: str = key("The key of the prompt in an example.", default="prompt")
    response_column: str = key(
        "The key of the response in an example. Only its tokens count in the loss.",
        default="response",
    )
    history_column: str | None = key(
        "The key of the earlier turns in an example: a list of [prompt, response] pairs.",
        default=None,
    )
    max_source_length: int = key(
        "Maximum number of tokens of prompt and history in an example: the first ones are kept, "
        "or with a chat template the last ones.",
        default=1024,
        minimum=1,
    )
    max_target_length: int = key(
        "Maximum number of tokens of the response, including the end-of-text token.",
        default=128,
        minimum=1,
    )
    chat_template: str = key(
        'Whether the tokenizer\'s chat template renders examples; `"auto"`: if it has one.',
        default="auto",
        allowed=CHAT_TEMPLATE,
    )
    packing: bool = key(
        "Fill sequences of `sequence_length` with several examples each, which do not attend to "
        "one another. Causal models only.",
        default=False,
    )
    tokenizer: str | None = key(
        '`"bytes"` (one token per byte, ids 0 to 255) or the path of a Hugging Face tokenizer. '
        'Default: `"bytes"` for `text`, and that of `model.path` for `examples`.',
        default=None,
        path=True,
        words=(BYTES,),
    )
    sequence_length: int = key(
        "Tokens in one sequence of `text`, `tokens` or packed `examples`.", default=256, minimum=2
    )


def kind_of(data: DataSpec) -> str:
    """Which of `KINDS` the job is trained on."""
    return next((kind for kind in KINDS if getattr(data, kind)), "text")


def patterns_of(data: DataSpec) -> tuple[str, ...]:
    """The paths and patterns of the training data."""
    patterns: tuple[str, ...] = getattr(data, kind_of(data))
    return patterns


def tokenizer_of(data: DataSpec, model_path: str | None) -> str | None:
    """The directory of the tokenizer; `BYTES` for one token per byte, None where there is none."""
    kind = kind_of(data)
    if data.tokenizer is not None:
        return data.tokenizer
    if kind == "text":
        return BYTES
    return model_path if kind == "examples" else None


def fixed_length(data: DataSpec) -> int | None:
    """The tokens of each sequence; None where each example is one of its own length."""
    return None if kind_of(data) == "examples" and not data.packing else data.sequence_length


def longest_sequence(data: DataSpec) -> int:
    """The most tokens that a sequence can have."""
    return fixed_length(data) or data.max_source_length + data.max_target_length


def check_data(data: DataSpec) -> Iterator[str]:
    """What is wrong in `[data]`, other tables aside."""
    given = [kind for kind in KINDS if getattr(data, kind)]
    if not given:
        yield "data: one of data.text, data.tokens and data.examples must name a file or pattern"
    if len(given) > 1:
        names = " and ".join(f"data.{kind}" for kind in given)
        yield f"data: {names} cannot be combined; leave all but one out"
    if len(given) == 1:
        yield from _check_unused(data, given[0])
        yield from _check_kind(data, given[0])


def _check_unused(data: DataSpec, kind: str) -> Iterator[str]:
    """Keys that say something about another kind of data."""
    defaults = {item.name: item.default for item in fields(data)}
    unused = [] if kind == "examples" else [f"data.{name}" for name in _OF_EXAMPLES]
    unused += [] if kind == "tokens" else ["data.token_type"]
    for unused_key in unused:
        name = unused_key.partition(".")[2]
        value = getattr(data, name)
        if value != defaults[name]:
            yield (
                f"{unused_key} = {show(value)}: cannot be combined with data.{kind}; leave it out"
            )


def _check_kind(data: DataSpec, kind: str) -> Iterator[str]:
    if kind == "tokens" and data.tokenizer == BYTES:
        yield 'data.tokenizer = "bytes": cannot be combined with data.tokens; leave it out'
    if kind != "examples":
        return
    columns = [data.prompt_column, data.response_column, data.history_column]
    if len({name for name in columns if name is not None}) < len([c for c in columns if c]):
        yield (
            "data: prompt_column, response_column and history_column must differ, and are "
            f"{', '.join(show(name) for name in columns if name is not None)}"
        )
