"""`[data]`: the training data of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key

BYTES = "bytes"
"""The value of `tokenizer` for one token per byte."""
KINDS = ("text", "tokens", "examples", "preferences")
ENCODED = ("examples", "preferences")
"""The kinds of data in which each record is tokenised on its own."""
TOKEN_TYPES = ("uint16", "uint32", "int32", "int64")
CHAT_TEMPLATE = ("auto", "on", "off")
TURN_FIELDS = (
    "content",
    "tool_calls",
    "function_call",
    "reasoning_content",
    "reasoning",
    "thinking",
)
"""The fields of a conversation turn that a model generates or reads."""
PROMPT_FIRST, SEPARATE = "prompt_first", "separate"
TRUNCATION = (PROMPT_FIRST, SEPARATE)
AUTO, COLUMNS, MESSAGES, ALPACA = "auto", "columns", "messages", "alpaca"
FORMATS = (AUTO, COLUMNS, MESSAGES, ALPACA)
ALL, LAST = "all", "last"
DOCUMENTS = (AUTO, "on", "off")
PROMPT_COLUMN, RESPONSE_COLUMN = "prompt", "response"
_OF_PREFERENCES = ("chosen_column", "rejected_column")
_OF_BOTH = (
    "prompt_column",
    "system_column",
    "max_source_length",
    "max_target_length",
    "chat_template",
    "ignore_fields",
)
SUM_TOLERANCE = 1e-4
"""The tolerance for a sum of weights that should be 1: with few digits, 3 x 0.3333 is not 1."""
STREAM_LENGTH = 256
"""The default `sequence_length` of `text` and `tokens`."""
_OF_EXAMPLES = (
    "format",
    "prompt_column",
    "response_column",
    "input_column",
    "history_column",
    "messages_column",
    "system_column",
    "tools_column",
    "loss_on",
    "max_source_length",
    "max_target_length",
    "truncation",
    "chat_template",
    "ignore_fields",
    "packing",
)
_COLUMNS = tuple(name for name in _OF_EXAMPLES if name.endswith("_column"))
_OF_TEXT = ("documents", "text_column")


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """`[data]`: the training data. A job sets one of `text`, `tokens`, `examples` and
    `preferences`.
    """

    text: tuple[str, ...] = key(
        "Text files: paths or glob patterns (`**` is allowed), read in sorted order. A file "
        "contains plain UTF-8 text, or documents: see `documents`.",
        default=(),
        path=True,
    )
    documents: str = key(
        "Whether the files of `text` hold documents, in the column `text_column` of their "
        'records. Each document is followed by the end-of-text token. `"auto"`: true for '
        "Parquet files and saved datasets, for names that end in `.jsonl`, `.ndjson`, `.csv` "
        "or `.tsv`, and for every other file if its first line is a JSON object with that "
        "column.",
        default=AUTO,
        stored_default="off",
        allowed=DOCUMENTS,
    )
    text_column: str = key(
        "The key or column that has the text of a document.", default="text", stored_default="text"
    )
    tokens: tuple[str, ...] = key(
        "Files of token ids: one-dimensional `.npy` arrays, or files with any other extension "
        "that contain only little-endian numbers of `token_type`. Paths or patterns.",
        default=(),
        path=True,
    )
    token_type: str | None = key(
        "The type of the ids in `tokens`. Not needed for `.npy` files, because they name their "
        "type.",
        default=None,
        allowed=TOKEN_TYPES,
    )
    examples: tuple[str, ...] = key(
        "Files of examples to fine-tune on: one JSON object per line (even if the name ends in "
        "`.json`), one JSON array of objects, `.csv` or `.tsv` with a header, `.parquet`, or the "
        "directory of a dataset that Hugging Face's `datasets` saved. Paths or patterns.",
        default=(),
        path=True,
    )
    preferences: tuple[str, ...] = key(
        "Files of preferences, of the same kinds as those of `examples`: a prompt, the chosen "
        "answer and a rejected answer, each a text or the turns of a conversation. The job "
        "trains by DPO with the settings of `[dpo]`, and `train.batch_size` counts pairs. "
        "Paths or patterns.",
        default=(),
        stored_default=(),
        path=True,
        engine="torch",
    )
    format: str = key(
        'The form of an example. `"columns"`: a prompt and a response in two columns. '
        '`"messages"`: a conversation in one column, with turns in the form of OpenAI (`role`, '
        '`content`) or ShareGPT (`from`, `value`). `"alpaca"`: the columns `instruction`, `input` '
        'and `output`. `"auto"`: the columns of a file\'s first example decide.',
        default=AUTO,
        stored_default=COLUMNS,
        allowed=FORMATS,
    )
    mixture: tuple[float, ...] = key(
        "Mixture weights, which add up to 1: one for each path or pattern of `text`, `tokens`, "
        "`examples` or `preferences`. An epoch has as many sequences as all files together, and a "
        "pattern's weight is its fraction of these sequences. If a pattern has too few sequences, "
        "they repeat.",
        default=(),
        stored_default=(),
    )
    prompt_column: str = key("The key of the prompt in an example.", default=PROMPT_COLUMN)
    response_column: str = key(
        "The key of the response in an example. Only its tokens count in the loss.",
        default=RESPONSE_COLUMN,
    )
    chosen_column: str = key(
        "The key of the chosen answer in a preference.", default="chosen", stored_default="chosen"
    )
    rejected_column: str = key(
        "The key of the rejected answer in a preference.",
        default="rejected",
        stored_default="rejected",
    )
    input_column: str | None = key(
        "The key of additional input, which is appended to the prompt after an empty line. "
        "Default: `input`, if the examples are in Alpaca's form and have this key.",
        default=None,
        stored_default=None,
    )
    history_column: str | None = key(
        "The key of the earlier turns in an example: a list of [prompt, response] pairs.",
        default=None,
    )
    messages_column: str | None = key(
        "The key of the conversation in an example. Default: `messages`, `conversations` or "
        "`conversation`.",
        default=None,
        stored_default=None,
    )
    system_column: str | None = key(
        "The key of the system prompt, which becomes the first turn. Default: `system`, if "
        "conversations or examples in Alpaca's form have this key.",
        default=None,
        stored_default=None,
    )
    tools_column: str | None = key(
        "The key of the tools that the assistant may call: a list, or a list as JSON text. "
        "Default: `tools`, if conversations have this key.",
        default=None,
        stored_default=None,
    )
    loss_on: str = key(
        "The turns of the assistant that count in the loss if a chat template renders them: "
        '`"all"`, or the `"last"` one.',
        default=ALL,
        stored_default=LAST,
        allowed=(ALL, LAST),
    )
    max_source_length: int | None = key(
        "Maximum number of tokens of prompt and history in an example. With a chat template the "
        "last tokens are kept, without one the first. Default: all that fit into "
        "`sequence_length`.",
        default=None,
        stored_default=1024,
        minimum=1,
    )
    max_target_length: int | None = key(
        "Maximum number of tokens of the response. The end-of-text token counts, and is never cut "
        "off. Default: all that fit into `sequence_length`.",
        default=None,
        stored_default=128,
        minimum=1,
    )
    truncation: str = key(
        'How an example that is too long is cut. `"prompt_first"`: prompt and response together '
        "are cut to `sequence_length`: first the prompt, then the response, which keeps its end "
        "token. "
        '`"separate"` (as in version 0.2): the prompt is cut to `max_source_length`, and the '
        "response to `max_target_length`; both must be set. With a chat template, a response that "
        "is cut loses its end.",
        default=PROMPT_FIRST,
        stored_default=SEPARATE,
        allowed=TRUNCATION,
    )
    chat_template: str = key(
        "Whether the tokenizer's chat template renders examples; "
        '`"auto"`: if the tokenizer has one.',
        default="auto",
        allowed=CHAT_TEMPLATE,
    )
    ignore_fields: tuple[str, ...] = key(
        "Fields of a conversation's turns that the chat template may leave out, such as "
        "`tool_calls`: the model trains without them, and the log counts them. If the "
        "template leaves out any other field, the job is refused.",
        default=(),
        stored_default=TURN_FIELDS,
        allowed=TURN_FIELDS,
        imported=False,
    )
    packing: bool = key(
        "Fill sequences of `sequence_length` with several examples each, which do not attend to "
        "one another. Causal models only.",
        default=False,
    )
    tokenizer: str | None = key(
        '`"bytes"` (one token per byte, ids 0 to 255) or the path of a Hugging Face tokenizer. '
        'Default: `"bytes"` for `text`, and the tokenizer of `model.path` for `examples` and '
        "`preferences`.",
        default=None,
        path=True,
        words=(BYTES,),
    )
    sequence_length: int | None = key(
        "Number of tokens in a sequence. An example that is not packed may be shorter, but not "
        "longer. Default: 256 for `text` and `tokens`; for `examples`, the maximum length of the "
        "model.",
        default=None,
        stored_default=256,
        minimum=2,
    )


def kind_of(data: DataSpec) -> str:
    """Return the kind of training data that the job has, one of `KINDS`."""
    return next((kind for kind in KINDS if getattr(data, kind)), "text")


def patterns_of(data: DataSpec) -> tuple[str, ...]:
    """Return the paths and path patterns of the training data files."""
    patterns: tuple[str, ...] = getattr(data, kind_of(data))
    return patterns


def tokenizer_of(data: DataSpec, model_path: str | None) -> str | None:
    """Return the directory of the tokenizer for the training data.

    Return `BYTES` if each byte is one token, and None if no tokenizer is needed.
    """
    kind = kind_of(data)
    if data.tokenizer is not None:
        return data.tokenizer
    if kind == "text":
        return BYTES
    return model_path if kind in ENCODED else None


def fixed_length(data: DataSpec, positions: int | None) -> int | None:
    """Return the number of tokens that every sequence has; None if sequences differ in length.

    `positions` is the model's maximum length in tokens (None: no limit). Without a limit, examples
    can only be packed if `sequence_length` is set.
    """
    if kind_of(data) not in ENCODED:
        return data.sequence_length or STREAM_LENGTH
    return longest_sequence(data, positions) if data.packing else None


def stated_length(data: DataSpec) -> int | None:
    """Return the job's `sequence_length` if it limits prompt and response together.

    Return None if it is not set, or if prompt and response have separate limits.
    """
    return data.sequence_length if data.truncation != SEPARATE else None


def bounds_length(data: DataSpec) -> bool:
    """Return whether the job file limits the length of a sequence.

    Without such a limit, the only limit is the model's maximum length, which few examples reach.
    """
    stated = data.sequence_length is not None or data.truncation == SEPARATE
    return kind_of(data) not in ENCODED or data.packing or stated


def longest_sequence(data: DataSpec, positions: int | None) -> int | None:
    """Return the largest number of tokens that a sequence may have; None if there is no limit.

    `positions` is the model's maximum length.
    """
    if kind_of(data) not in ENCODED:
        return data.sequence_length or STREAM_LENGTH
    if data.truncation == SEPARATE and not data.packing:
        return (data.max_source_length or 0) + (data.max_target_length or 0)
    return data.sequence_length or positions


def check_data(data: DataSpec) -> Iterator[str]:
    """Yield the problems in `[data]` that do not depend on other tables."""
    given = [kind for kind in KINDS if getattr(data, kind)]
    if not given:
        yield (
            "data: one of data.text, data.tokens, data.examples and data.preferences must name a "
            "file or pattern"
        )
    if len(given) > 1:
        names = " and ".join(f"data.{kind}" for kind in given)
        yield f"data: {names} cannot be combined; leave all but one out"
    if len(given) == 1:
        yield from _check_unused(data, given[0])
        yield from _check_mixture(data)
        yield from _check_kind(data, given[0])


def _check_unused(data: DataSpec, kind: str) -> Iterator[str]:
    """Yield a problem for each key that has no effect for this kind of data."""
    defaults = {item.name: item.default for item in fields(data)}
    both = _OF_BOTH if kind == "preferences" else ()
    unused = [f"data.{name}" for name in _OF_EXAMPLES if kind != "examples" and name not in both]
    unused += [f"data.{name}" for name in _OF_PREFERENCES if kind != "preferences"]
    unused += [] if kind == "text" else [f"data.{name}" for name in _OF_TEXT]
    unused += [] if kind == "tokens" else ["data.token_type"]
    for unused_key in unused:
        name = unused_key.partition(".")[2]
        value = getattr(data, name)
        if value != defaults[name]:
            yield (
                f"{unused_key} = {format_value(value)}: cannot be combined with data.{kind}; leave "
                "it out"
            )


def _check_mixture(data: DataSpec) -> Iterator[str]:
    weights, patterns = data.mixture, patterns_of(data)
    if not weights:
        return
    what = f"data.mixture = {format_value(list(weights))}"
    if len(weights) != len(patterns):
        yield (
            f"{what}: has {len(weights)} weights, but data.{kind_of(data)} has {len(patterns)} "
            "entries; give one weight for each entry"
        )
    elif min(weights) <= 0:
        yield f"{what}: each weight must be above 0; leave out the files that you do not want"
    elif abs(sum(weights) - 1) > SUM_TOLERANCE:
        yield f"{what}: the weights add up to {sum(weights):.6g}, but must add up to 1"


def _check_kind(data: DataSpec, kind: str) -> Iterator[str]:
    if kind == "tokens" and data.tokenizer == BYTES:
        yield 'data.tokenizer = "bytes": cannot be combined with data.tokens; leave it out'
    if kind not in ENCODED:
        return
    if data.truncation == SEPARATE:
        yield from _check_separate(data)
    if kind == "examples":
        yield from _check_format(data)
    of_pairs = ("prompt_column", "system_column", *_OF_PREFERENCES)
    names = of_pairs if kind == "preferences" else _COLUMNS
    columns = {name: value for name in names if (value := getattr(data, name)) is not None}
    if len(set(columns.values())) < len(columns):
        yield (
            f"data: {', '.join(columns)} must differ, but are "
            f"{', '.join(format_value(name) for name in columns.values())}"
        )


def _check_separate(data: DataSpec) -> Iterator[str]:
    for name in ("max_source_length", "max_target_length"):
        if getattr(data, name) is None:
            yield f'data.truncation = "separate": data.{name} is missing; set it'
    if data.loss_on != LAST:
        yield (
            'data.truncation = "separate": learns only from the last answer; set data.loss_on '
            '= "last", or leave data.truncation out'
        )


def _check_format(data: DataSpec) -> Iterator[str]:
    """Yield a problem for each key that names a column which examples in the job's `format` do
    not have.
    """
    of_columns = ("prompt_column", "response_column", "input_column", "history_column")
    foreign = {
        COLUMNS: ("messages_column", "tools_column"),
        MESSAGES: of_columns,
        ALPACA: ("prompt_column", "response_column", "messages_column", "tools_column"),
    }
    form = MESSAGES if data.format == AUTO and data.messages_column else data.format
    defaults = {item.name: item.default for item in fields(data)}
    for name in foreign.get(form, ()):
        value = getattr(data, name)
        if value != defaults[name]:
            yield (
                f"data.{name} = {format_value(value)}: examples with data.format = "
                f"{format_value(form)} have no "
                "such column; leave it out"
            )
