"""The table of chat templates compares masks, and says why a chat is refused."""

from __future__ import annotations

import pytest

from benchmarks.chat_templates.__main__ import DIFFERS, EQUAL, Cell, cell, lines, tokenizer_of
from benchmarks.chat_templates.templates import TEMPLATES, marked, unmarked

pytestmark = pytest.mark.torch


def compared(template: str, judge: str, name: str) -> Cell:
    return cell(tokenizer_of(unmarked(template)), tokenizer_of(marked(judge)), name)


def test_equal_refused_and_different() -> None:
    llama, granite = TEMPLATES["Llama 3"], TEMPLATES["Granite 3.3"]
    assert compared(llama, llama, "several turns") == Cell(EQUAL)
    refused = compared(granite, granite, "tool calls")
    assert refused.verdict == "refused"
    assert "tool_calls" in refused.why
    asked = "user<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    more = asked.replace("{{", "«{{") + "»"
    wrong = compared(llama, llama.replace(asked, more), "several turns")
    assert wrong.verdict == DIFFERS
    table = "\n".join(lines({"Llama 3": {"several turns": wrong}}))
    assert "1 chats: 0 equal, 0 refused, 1 **differs**" in table
    assert "and the marks are around" in table
