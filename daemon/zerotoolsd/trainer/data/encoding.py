"""An example's text as the ids of its source and of its target.

With a chat template: the source is what the template makes of the turns before and the prompt, with
its header of an answer; the target is what it adds for the response. Without one, for a causal
model: the source is the prompt, as it is, after the tokenizer's first token if it has one, and the
target is the response and the end-of-text token; a history is put before the prompt in ChatGLM's
rounds, as its fine-tuning script has it. For an encoder-decoder both get the special tokens that
the tokenizer gives them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from zerotools.core.errors import BadFile, BadRequest
from zerotools.jobs.datafiles.example_files import TextExample
from zerotools.jobs.tables.data import DataSpec

AT_ONCE = 256
LETTERS_AT_ONCE = 1 << 20
"""Examples are tokenised together, so many or with so much text."""


@dataclass(frozen=True)
class Encoded:
    """The ids of an example, and whether the lengths that are kept left nothing of its text."""

    record: TextExample
    source: list[int]
    target: list[int]
    is_source_lost: bool
    is_target_lost: bool


def make_encoder(tokenizer: Any, data: DataSpec, *, encoder_decoder: bool) -> Encoder:
    """The way in which a tokenizer, a job and a kind of model read examples.

    Raises:
        BadRequest: the tokenizer has no chat template where one is asked for, or no end of text.
    """
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if data.chat_template == "on" and not has_template:
        raise BadRequest(
            f'data.chat_template = "on": the tokenizer in {tokenizer.name_or_path} has '
            "no chat template; put its chat_template.jinja there, or leave the key out"
        )
    if has_template and data.chat_template != "off":
        return ChatEncoder(tokenizer, data)
    if tokenizer.eos_token_id is None:
        raise BadRequest(
            f"the tokenizer in {tokenizer.name_or_path} has no eos_token to mark the end of a "
            "response: name one in its tokenizer_config.json"
        )
    return SpecialEncoder(tokenizer, data) if encoder_decoder else PlainEncoder(tokenizer, data)


class Encoder(ABC):
    """What all kinds have in common."""

    def __init__(self, tokenizer: Any, data: DataSpec) -> None:
        self._tokenizer = tokenizer
        self._most_source, self._most_target = data.max_source_length, data.max_target_length

    def encoded(self, records: Iterator[TextExample]) -> Iterator[Encoded]:
        """The ids of `records`, in order."""
        for batch in _batches(records):
            yield from self._batch(batch)

    @abstractmethod
    def _batch(self, records: Sequence[TextExample]) -> Iterator[Encoded]: ...

    def _ids(self, texts: list[str], *, special: bool = False) -> list[list[int]]:
        found = self._tokenizer(texts, add_special_tokens=special, verbose=False)
        ids: list[list[int]] = found["input_ids"]
        return ids


def _batches(records: Iterator[TextExample]) -> Iterator[list[TextExample]]:
    batch: list[TextExample] = []
    letters = 0
    for record in records:
        batch.append(record)
        letters += len(record.prompt) + len(record.response)
        if len(batch) == AT_ONCE or letters >= LETTERS_AT_ONCE:
            yield batch
            batch, letters = [], 0
    if batch:
        yield batch


class PlainEncoder(Encoder):
    """A prompt and its response, one right after the other."""

    def __init__(self, tokenizer: Any, data: DataSpec) -> None:
        super().__init__(tokenizer, data)
        first = tokenizer.bos_token_id
        begins = self._ids(["a"], special=True)[0][:1] == [first]
        self._first = [first] if first is not None and begins else []
        self._last = [tokenizer.eos_token_id]

    def _batch(self, records: Sequence[TextExample]) -> Iterator[Encoded]:
        sources = self._ids([in_rounds(record) for record in records])
        targets = self._ids([record.response for record in records])
        for record, source, target in zip(records, sources, targets, strict=True):
            asked = source[: max(0, self._most_source - len(self._first))]
            answer = target[: self._most_target - len(self._last)]
            yield Encoded(record, self._first + asked, answer + self._last, not asked, not answer)


class SpecialEncoder(Encoder):
    """Source and target on their own, each with the tokenizer's special tokens around it."""

    def _batch(self, records: Sequence[TextExample]) -> Iterator[Encoded]:
        extra: int = self._tokenizer.num_special_tokens_to_add()
        sources = self._cut(self._most_source, extra, text=[in_rounds(r) for r in records])
        targets = self._cut(self._most_target, extra, text_target=[r.response for r in records])
        for record, source, target in zip(records, sources, targets, strict=True):
            yield Encoded(record, source, target, len(source) <= extra, len(target) <= extra)

    def _cut(self, most: int, extra: int, **texts: list[str]) -> list[list[int]]:
        # A tokenizer cannot cut its own special tokens off.
        length = max(most, extra)
        found = self._tokenizer(**texts, truncation=True, max_length=length, verbose=False)
        ids: list[list[int]] = found["input_ids"]
        return ids


class ChatEncoder(Encoder):
    """The turns of a chat, as the tokenizer's template renders them."""

    def _batch(self, records: Sequence[TextExample]) -> Iterator[Encoded]:
        pairs = [self._rendered(record) for record in records]
        sources = self._ids([asked for asked, _ in pairs])
        targets = self._ids([answer for _, answer in pairs])
        for record, source, target in zip(records, sources, targets, strict=True):
            yield Encoded(
                record,
                source[-self._most_source :],
                target[: self._most_target],
                not source,
                not target,
            )

    def _rendered(self, record: TextExample) -> tuple[str, str]:
        turns = []
        for prompt, response in (*record.history, (record.prompt, record.response)):
            turns.append({"role": "user", "content": prompt})
            turns.append({"role": "assistant", "content": response})
        try:
            asked = self._tokenizer.apply_chat_template(
                turns[:-1], tokenize=False, add_generation_prompt=True
            )
            whole = self._tokenizer.apply_chat_template(turns, tokenize=False)
        except Exception as error:  # whatever a template raises over the turns
            line = str(error).strip().splitlines()[0] if str(error).strip() else "it failed"
            raise BadFile(
                f"{record.place}: the tokenizer's chat template rejects it: {line}"
            ) from None
        if not whole.startswith(asked):
            raise BadRequest(
                f"the chat template of {self._tokenizer.name_or_path} renders a prompt "
                "differently when its response follows: set data.chat_template = "
                '"off", or fix the template'
            )
        return asked, whole[len(asked) :]


def in_rounds(record: TextExample) -> str:
    """The prompt, after the turns before it."""
    if not record.history:
        return record.prompt
    rounds = [
        f"[Round {number}]\n问：{prompt}\n答：{response}\n"
        for number, (prompt, response) in enumerate(record.history)
    ]
    return "".join(rounds) + f"[Round {len(rounds)}]\n问：{record.prompt}\n答："
