"""Read training data from the records of a file: examples to fine-tune on, or documents.

An example is a record with a prompt and a response in separate columns (also with Alpaca's names),
or with a conversation in one column. The first record of a file determines the kind of all its
examples, unless the job sets it. A document is the text in one column of a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.conversations import (
    ASSISTANT,
    SYSTEM,
    USER,
    Conversation,
    conversation_of,
)
from zerotools.jobs.datafiles.json_objects import FORM, Seen, read_objects
from zerotools.jobs.datafiles.record_files import (
    COLUMNAR,
    SEPARATORS,
    checked_text,
    column_value,
    kind_in_words,
    read_records,
    text_of,
)
from zerotools.jobs.jobfile_tables.data import (
    ALPACA,
    AUTO,
    COLUMNS,
    MESSAGES,
    PROMPT_COLUMN,
    RESPONSE_COLUMN,
    DataSpec,
)

_CONVERSATIONS = ("messages", "conversations", "conversation")
_SYSTEM, _TOOLS = "system", "tools"
_INSTRUCTION, _INPUT, _OUTPUT = "instruction", "input", "output"


_SUFFIXES = (*COLUMNAR, *SEPARATORS, ".jsonl", ".ndjson")
_FIRST_BYTES = 1 << 20
_OTHERWISE = 'set data.documents = "off" to train on the whole file as plain text'


@dataclass(frozen=True)
class TextExample:
    """One example as text. `place` is the text for its file and line in messages."""

    place: str
    prompt: str
    response: str
    history: tuple[tuple[str, str], ...] = ()
    system: str = ""

    @property
    def is_empty(self) -> bool:
        """True if the prompt or the response is empty."""
        return not self.prompt or not self.response

    @property
    def letters(self) -> int:
        """The approximate length of the example, in characters."""
        return len(self.prompt) + len(self.response)


Record = TextExample | Conversation
_Taker = Callable[[str, Mapping[str, Any]], Record]


def read_examples(
    path: Path, data: DataSpec, budget: int | None = None, seen: Seen | None = None
) -> Iterator[Record]:
    """Yield the examples in the file `path`. The settings in `data` name the columns.

    Reading stops after `budget` bytes, if set. For a JSON file, `seen` is called with the number of
    bytes read.

    Raises:
        BadFile: the file is not what its extension says, or lacks a column; the message has file
            and line.
        BadRequest: this interpreter lacks the package for such files.
    """
    take: _Taker | None = None
    for place, value in read_records(path, budget, seen=seen):
        if not isinstance(value, Mapping):
            raise BadFile(f"{place}: is {kind_in_words(value)}, not an object; {FORM}")
        take = take or _example_reader(value, data)
        yield take(place, value)


def read_records_of(
    path: Path, data: DataSpec, budget: int | None = None, seen: Seen | None = None
) -> Iterator[Record]:
    """Yield the examples in the file `path`.

    For a preference, yield two examples: the prompt with the chosen answer, and then the prompt
    with the rejected answer. Raises the errors of `read_examples`.
    """
    if not data.preferences:
        yield from read_examples(path, data, budget, seen)
        return
    for place, value in read_records(path, budget, seen=seen):
        if not isinstance(value, Mapping):
            raise BadFile(f"{place}: is {kind_in_words(value)}, not an object; {FORM}")
        for name in ("chosen_column", "rejected_column"):
            yield _answer(place, value, name, data)


def _answer(place: str, tree: Mapping[str, Any], name: str, data: DataSpec) -> Record:
    """Return an example from a preference: its prompt and one of its answers.

    `name` is the field of `data` that names the answer's column.
    """
    column_name, key = getattr(data, name), f"data.{name}"
    prompt = column_value(place, tree, data.prompt_column, "data.prompt_column")
    answer = column_value(place, tree, column_name, key)
    system = _system(place, tree, data, None)
    if not isinstance(answer, list):
        found = TextExample(
            place,
            text_of(place, tree, data.prompt_column, "data.prompt_column"),
            text_of(place, tree, column_name, key),
            system=system,
        )
        if found.is_empty:
            lost = column_name if found.prompt else data.prompt_column
            raise BadFile(
                f'{place}: "{lost}" is empty, but a preference needs a prompt, a chosen and a '
                "rejected answer; write the missing text, or remove the line"
            )
        return found
    asked = prompt if isinstance(prompt, list) else [{"role": USER, "content": prompt}]
    found_turns = conversation_of(f'{place}: "{column_name}"', [*asked, *answer], system, None)
    turns, count = found_turns.turns, len(answer)
    learned = (False,) * (len(turns) - count) + found_turns.learned[len(turns) - count :]
    if not turns or turns[-1]["role"] != ASSISTANT or not learned[-1]:
        raise BadFile(
            f'{place}: "{column_name}" does not end with an answer of the assistant; add one, or '
            "remove the line"
        )
    return Conversation(place, turns, found_turns.tools, learned)


def as_conversation(record: Record) -> Conversation:
    """Return an example as a conversation. Every answer in it counts in the loss."""
    if isinstance(record, Conversation):
        return record
    turns: list[dict[str, str]] = []
    if record.system:
        turns.append({"role": SYSTEM, "content": record.system})
    for prompt, response in (*record.history, (record.prompt, record.response)):
        turns.append({"role": USER, "content": prompt})
        turns.append({"role": ASSISTANT, "content": response})
    learned = tuple(turn["role"] == ASSISTANT and bool(turn["content"]) for turn in turns)
    return Conversation(record.place, tuple(turns), None, learned)


def _example_reader(first: Mapping[str, Any], data: DataSpec) -> _Taker:
    """Return the function that converts each record of a file to an example.

    The columns of the file's first record, `first`, determine the function.
    """
    form = _form(first, data) if data.format == AUTO else data.format
    if form == MESSAGES:
        name = data.messages_column or next(
            (name for name in _CONVERSATIONS if name in first), _CONVERSATIONS[0]
        )
        return lambda place, tree: _conversation(place, tree, name, data)
    if form == ALPACA:
        return lambda place, tree: _alpaca(place, tree, data)
    return lambda place, tree: _columns(place, tree, data)


def _form(first: Mapping[str, Any], data: DataSpec) -> str:
    if data.messages_column is not None:
        return MESSAGES
    # Next to a conversation, its first prompt often has a separate column.
    is_named = data.response_column != RESPONSE_COLUMN or data.response_column in first
    if data.prompt_column != PROMPT_COLUMN or (is_named and data.prompt_column in first):
        return COLUMNS
    if any(isinstance(first.get(name), list | str) for name in _CONVERSATIONS):
        return MESSAGES
    return ALPACA if _INSTRUCTION in first and _OUTPUT in first else COLUMNS


def _columns(place: str, tree: Mapping[str, Any], data: DataSpec) -> TextExample:
    prompt = text_of(place, tree, data.prompt_column, "data.prompt_column")
    if data.input_column is not None:
        prompt = _joined(prompt, text_of(place, tree, data.input_column, "data.input_column"))
    named = data.history_column
    return TextExample(
        place,
        prompt,
        text_of(place, tree, data.response_column, "data.response_column"),
        () if named is None else _history(place, tree, named, "data.history_column"),
        _system(place, tree, data, None),
    )


def _alpaca(place: str, tree: Mapping[str, Any], data: DataSpec) -> TextExample:
    name = data.input_column or _INPUT
    key = "data.input_column"
    added = text_of(place, tree, name, key) if name in tree or data.input_column else ""
    named = data.history_column or ("history" if tree.get("history") else None)
    return TextExample(
        place,
        _joined(text_of(place, tree, _INSTRUCTION, 'data.format = "alpaca"'), added),
        text_of(place, tree, _OUTPUT, 'data.format = "alpaca"'),
        () if named is None else _history(place, tree, named, "data.history_column"),
        _system(place, tree, data, _SYSTEM),
    )


def _conversation(place: str, tree: Mapping[str, Any], name: str, data: DataSpec) -> Conversation:
    turns = column_value(place, tree, name, "data.messages_column")
    tools = tree.get(_TOOLS)
    if data.tools_column is not None:
        tools = column_value(place, tree, data.tools_column, "data.tools_column")
    return conversation_of(place, turns, _system(place, tree, data, _SYSTEM), tools)


def _joined(prompt: str, added: str) -> str:
    return f"{prompt}\n\n{added}" if prompt and added else prompt or added


def _system(place: str, tree: Mapping[str, Any], data: DataSpec, usual: str | None) -> str:
    if data.system_column is not None:
        return text_of(place, tree, data.system_column, "data.system_column")
    return text_of(place, tree, usual, "data.system_column") if usual in tree and usual else ""


def _history(
    place: str, tree: Mapping[str, Any], name: str, key: str
) -> tuple[tuple[str, str], ...]:
    value = column_value(place, tree, name, key)
    turns = [] if value is None else value
    what = f'{place}: "{name}"'
    if not isinstance(turns, list):
        raise BadFile(f"{what} is {kind_in_words(turns)}, not a list of [prompt, response] pairs")
    pairs = []
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn, list) or len(turn) != 2:
            raise BadFile(f"{what}: turn {number} is not a pair; write [prompt, response]")
        pairs.append((checked_text(f"{what}: turn {number}", turn[0]), checked_text(what, turn[1])))
    return tuple(pairs)


def has_documents(path: Path, data: DataSpec) -> bool:
    """Return whether a file of `data.text` has records that contain documents.

    If not, it is plain text. Raises OSError.
    """
    if data.documents != AUTO:
        return data.documents == "on"
    return path.suffix.lower() in _SUFFIXES or _begins_with_one(path, data.text_column)


def _begins_with_one(path: Path, name: str) -> bool:
    with path.open("rb") as file:
        if not file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"{", b"[")):
            return False
    try:
        first: Any = next(iter(read_objects(path, _FIRST_BYTES)), (0, None))[1]
    except BadFile:
        return False
    return isinstance(first, Mapping) and name in first


def read_documents(
    path: Path, data: DataSpec, budget: int | None = None, seen: Seen | None = None
) -> Iterator[str]:
    """Yield the non-empty documents in the file `path`.

    Reading stops after `budget` bytes, if set. For a JSON file, `seen` is called with the number of
    bytes read.

    Raises:
        BadFile: the file is not what its extension says, or lacks the column; the message has file
            and line.
        BadRequest: this interpreter lacks the package for such files.
    """
    for place, value in read_records(path, budget, (data.text_column,), seen):
        if not isinstance(value, Mapping):
            raise BadFile(
                f"{place}: is {kind_in_words(value)}, not an object with a document in "
                f'"{data.text_column}"; {_OTHERWISE}'
            )
        if data.text_column not in value:
            names = ", ".join(map(str, value)) or "none"
            raise BadFile(
                f'{place}: has no column "{data.text_column}" (data.text_column); it has '
                f"{names:.200}; {_OTHERWISE}"
            )
        if text := text_of(place, value, data.text_column, "data.text_column"):
            yield text
