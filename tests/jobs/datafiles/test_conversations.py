"""Conversations of OpenAI and ShareGPT become one form, and every slip is named with its turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.conversations import Conversation, conversation_of
from zerotools.jobs.datafiles.examples_and_documents import (
    TextExample,
    as_conversation,
    read_examples,
)
from zerotools.jobs.jobfile_tables.data import DataSpec

ASKED, SAID = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


def read(tmp_path: Path, row: Any, **keys: Any) -> Any:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row))
    [found] = read_examples(path, DataSpec(**keys))
    return found


def test_both_vocabularies_are_one(tmp_path: Path) -> None:
    ours = read(tmp_path, {"messages": [ASKED, SAID]})
    theirs = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    assert read(tmp_path, theirs) == ours
    assert ours.turns == (ASKED, SAID)
    assert ours.learned == (False, True)
    assert read(tmp_path, {"chat": [ASKED, SAID]}, messages_column="chat").turns == ours.turns
    # such as a table of text has it
    assert read(tmp_path, {"messages": json.dumps([ASKED, SAID])}) == ours


def test_alpacas_columns_and_those_of_the_job(tmp_path: Path) -> None:
    row = {"instruction": "add", "input": "1 2", "output": "3", "system": "S"}
    found = read(tmp_path, row)
    assert (found.prompt, found.response, found.system) == ("add\n\n1 2", "3", "S")
    assert read(tmp_path, {**row, "input": ""}).prompt == "add"
    own = read(
        tmp_path,
        {"q": "add", "more": "1 2", "a": "3", "s": "S"},
        prompt_column="q",
        response_column="a",
        input_column="more",
        system_column="s",
    )
    assert own == found
    chat = as_conversation(own)
    assert [turn["role"] for turn in chat.turns] == ["system", "user", "assistant"]
    assert chat.learned == (False, False, True)


def test_a_prompt_and_a_response_come_first(tmp_path: Path) -> None:
    row = {"prompt": "a", "response": "b", "messages": [ASKED, SAID], "system": "ignored"}
    assert read(tmp_path, row) == TextExample(f"{tmp_path}/a.jsonl, line 1", "a", "b")
    assert isinstance(read(tmp_path, row, format="messages"), Conversation)
    # such as UltraChat, which has the first prompt in a column of its own
    del row["response"]
    assert isinstance(read(tmp_path, row), Conversation)
    assert read(tmp_path, {**row, "completion": "b"}, response_column="completion").response == "b"


def test_parts_calls_weights_and_tools_are_read() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "c"},
        {"role": "assistant", "content": "d", "weight": 0},
        {"role": "assistant", "content": "e", "weight": 1},
    ]
    found = conversation_of("x", turns, "S", '[{"type": "function"}]')
    assert found.turns[0] == {"role": "system", "content": "S"}
    assert found.turns[1]["content"] == "ab"
    assert found.turns[2]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert found.turns[3]["tool_call_id"] == "1"
    assert found.learned == (False, False, True, False, False, True)
    assert found.with_last_answer().learned == (False, False, False, False, False, True)
    assert found.tools == [{"type": "function"}]
    assert "weight" not in found.turns[4]


@pytest.mark.parametrize(
    ("turns", "sentence"),
    [
        ([ASKED], "x: the conversation has no turn of the assistant"),
        ([], "x: is an empty list of turns"),
        (7, "x: is a number, not a list of turns"),
        ("[oops", "x: must be JSON"),
        ([ASKED, "b"], "x: turn 2 is text, not an object"),
        ([ASKED, {"content": "b"}], 'x: turn 2 has no "role" and no "from"; it has content'),
        (
            [{"role": "critic", "content": "a"}],
            'x: turn 1 has the role "critic", which is not supported; use',
        ),
        ([ASKED, {"role": "assistant", "content": 3}], 'turn 2: "content" is a number, not text'),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}, SAID],
            "x: turn 1 has a part that is not text (image_url); only text can be trained on",
        ),
        (
            [ASKED, {"from": "function_call", "value": "{oops"}],
            "x: turn 2: must be JSON",
        ),
        (
            [ASKED, {**SAID, "tool_calls": [{"function": {}}]}],
            'x: turn 2 has a tool call without a "name" in its "function"',
        ),
        ([ASKED, {**SAID, "tool_calls": 7}], 'x: turn 2: "tool_calls" is a number, not a list'),
        (
            [{"role": ["user"], "content": "a"}],
            'x: turn 1 has the role ["user"], which is not supported; use',
        ),
        ([{"role": "user", "content": b"a"}], 'x: turn 1: "content" is bytes, not text'),
    ],
)
def test_a_slip_is_named_with_its_turn(turns: Any, sentence: str) -> None:
    with pytest.raises(BadFile) as info:
        conversation_of("x", turns, "", None)
    assert sentence in str(info.value)


def test_a_conversation_whose_answers_are_empty_is_empty() -> None:
    assert conversation_of("x", [ASKED, {**SAID, "content": ""}], "", None).is_empty
    assert not conversation_of("x", [ASKED, SAID], "", None).is_empty
