"""Which tokens of a chat count in the loss, for 42 templates and nine kinds of conversations.

    python -m benchmarks.chat_templates > benchmarks/results/chat-templates.md

Each template exists twice: as a model has it, which the trainer reads, and with transformers' marks
around what the model is to say, which `apply_chat_template(return_assistant_tokens_mask=True)`
reads. Both have to give the same ids and the same mask, or the trainer has to refuse the chat. The
exit status is 1 where they differ.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.chat_templates.conversations import CONVERSATIONS, TOOLS, WITH_TOOLS
from benchmarks.chat_templates.templates import TEMPLATES, marked, unmarked
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.datafiles.conversations import conversation_of
from zerotools.jobs.jobfile_tables.data import DataSpec
from zerotoolsd.trainer.data.encoding.encoded_example import LEARNED
from zerotoolsd.trainer.data.encoding.encoders import make_encoder

SPECIAL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|eot_id|>", "<|end|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    *("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "<start_of_turn>", "<end_of_turn>", "<|user|>"),
    *("<|assistant|>", "<|system|>", "<|observation|>", "<|User|>", "<|Assistant|>"),
    *("<|tool_calls|>", "<|tool_output|>", "<|start_of_role|>", "<|end_of_role|>"),
    *("<|end_of_text|>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>"),
    *("<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "[gMASK]", "<sop>", "<|end_of_turn|>"),
    *("<reserved_106>", "<reserved_107>", "<|start|>", "<|message|>", "<|channel|>"),
    *("<|return|>", "[|user|]", "[|assistant|]", "[|system|]", "[|endofturn|]", "<|endoftext|>"),
)
EQUAL, DIFFERS = "equal", "**differs**"


@dataclass(frozen=True)
class Cell:
    """What came of a template and a conversation; `why` it was refused or how it differs."""

    verdict: str
    why: str = ""


def tokenizer_of(template: str) -> Any:
    """A tokenizer of bytes with the special tokens of all templates."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([*SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=template
    )


def cell(plain: Any, judge: Any, name: str) -> Cell:
    """Compare the mask of the trainer with that of the marks."""
    turns = CONVERSATIONS[name]
    tools = TOOLS if name in WITH_TOOLS else None
    try:
        chat = conversation_of("the chat", turns, "", tools)
        [found] = make_encoder(plain, DataSpec(), encoder_decoder=False).encoded([chat])
    except ZerotoolsError as error:
        return Cell("refused", str(error))
    last = max(number for number, learned in enumerate(chat.learned) if learned)
    read = [*chat.turns[: last + 1]]
    try:
        own = _masked(judge, read, tools)
    except Exception:  # such as DeepSeek's, which want the arguments of calls as text
        own = _masked(judge, _with_texts(read), tools)
    has_empty = any(not turn["content"] and not turn.get("tool_calls") for turn in read)
    return _compared(plain, found.marked, own, has_empty)


def _masked(judge: Any, turns: Sequence[Any], tools: Any) -> tuple[list[int], list[int]]:
    own = judge.apply_chat_template(
        list(turns), tools=tools, return_dict=True, return_assistant_tokens_mask=True
    )
    return own["input_ids"], own["assistant_masks"]


def _with_texts(turns: Sequence[Any]) -> Iterator[Any]:
    for turn in turns:
        calls = [
            {**call, "function": {**call["function"], "arguments": json.dumps(arguments)}}
            for call in turn.get("tool_calls", ())
            for arguments in [call["function"]["arguments"]]
        ]
        yield {**turn, "tool_calls": calls} if calls else turn


def _compared(
    tokenizer: Any, marked_ids: Any, own: tuple[list[int], list[int]], has_empty: bool
) -> Cell:
    ids, mask = (marked_ids & ~np.uint32(LEARNED)).tolist(), (marked_ids >= LEARNED).tolist()
    wanted_ids, wanted = own[0], [each == 1 for each in own[1]]
    common = min(len(ids), len(wanted_ids))
    if ids[:common] != wanted_ids[:common]:
        return Cell(DIFFERS, "the ids")
    if any(wanted[common:]):
        return Cell(DIFFERS, "the end of the answer is missing")
    wanted += [False] * (len(ids) - len(wanted))
    more = [n for n, (ours, theirs) in enumerate(zip(mask, wanted, strict=False)) if ours > theirs]
    less = [n for n, (ours, theirs) in enumerate(zip(mask, wanted, strict=False)) if ours < theirs]
    notes = set()
    for number in more:
        text = tokenizer.decode([ids[number]])
        if not (wanted[number - 1] or number - 1 in more):
            notes.add("")
        elif text.isspace():
            notes.add("the white space after an answer is learned as well")
        elif text == "<|user|>":
            notes.add("an answer has no end: the token is learned that begins the next turn")
        else:
            notes.add("")
    if less and has_empty:
        notes.add("an answer without text is not learned from")
    elif less and tokenizer.decode([ids[number] for number in less]).strip() in _header(tokenizer):
        notes.add("what the header of an answer has is not learned")
    elif less:
        notes.add("")
    if "" in notes:
        ours, theirs = (
            tokenizer.decode([n for n, said in zip(ids, which, strict=False) if said])
            for which in (mask, wanted)
        )
        return Cell(DIFFERS, f"learns {ours!r}, and the marks are around {theirs!r}")
    return Cell(EQUAL, "; ".join(sorted(notes)))


def _header(tokenizer: Any) -> str:
    """The text after which the model begins an answer."""
    turns = CONVERSATIONS["plain"][:1]
    text, asks = (
        tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=each)
        for each in (False, True)
    )
    return str(asks[len(text) :])


def table() -> dict[str, dict[str, Cell]]:
    """Each template with each conversation."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    found = {}
    for template, text in TEMPLATES.items():
        plain, judge = tokenizer_of(unmarked(text)), tokenizer_of(marked(text))
        found[template] = {name: cell(plain, judge, name) for name in CONVERSATIONS}
    return found


def lines(found: dict[str, dict[str, Cell]]) -> Iterator[str]:
    """The table in Markdown, with each reason once."""
    cells = [each for row in found.values() for each in row.values()]
    count = {verdict: sum(each.verdict == verdict for each in cells) for verdict in _VERDICTS}
    yield "# Which tokens of a chat are learned, by template and conversation\n"
    yield f"`python -m benchmarks.chat_templates`: {__doc__.split(chr(10), 1)[0].lower()}"
    yield (
        "The judge is `apply_chat_template(return_assistant_tokens_mask=True)` of transformers on "
        "the same template with marks.\n"
    )
    yield f"{len(cells)} chats: " + ", ".join(f"{n} {v}" for v, n in count.items()) + ".\n"
    yield f"| template | {' | '.join(CONVERSATIONS)} |"
    yield "|---" * (1 + len(CONVERSATIONS)) + "|"
    reasons: dict[str, int] = {}
    for name, row in found.items():
        texts = []
        for each in row.values():
            note = reasons.setdefault(_general(each.why), len(reasons) + 1) if each.why else ""
            texts.append(f"{each.verdict}{f' ({note})' if note else ''}")
        yield f"| {name} | {' | '.join(texts)} |"
    yield ""
    yield from (f"{number}. {why}" for why, number in reasons.items())


_VERDICTS = (EQUAL, "refused", DIFFERS)


def _general(why: str) -> str:
    return why.removeprefix("the chat: ").replace("the chat template of  ", "the chat template ")


def main() -> int:
    found = table()
    print(*lines(found), sep="\n")
    return int(any(each.verdict == DIFFERS for row in found.values() for each in row.values()))


if __name__ == "__main__":
    sys.exit(main())
