"""Which characters of a chat are answers, by the kinds of templates that there are."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.trainer.finetuning import TEMPLATE, load, make_tokenizer
from zerotools.core.errors import BadFile, BadRequest
from zerotools.jobs.datafiles.conversations import Conversation, conversation_of
from zerotoolsd.trainer.data.encoding.chat_template import ChatTemplate

pytestmark = pytest.mark.torch
MARKED = (
    "{% for turn in messages %}<|{{ turn.role }}|>{% if turn.role == 'assistant' %}"
    "{% generation %}{{ turn.content }}<|end|>{% endgeneration %}{% else %}"
    "{{ turn.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THINKING = (  # as Qwen3's: thoughts of the last answer alone
    "{% for turn in messages %}<|{{ turn.role }}|>"
    "{% if turn.role == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ turn.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LATE_SYSTEM = (  # as Mistral's: the system's text stands in the last turn of the user
    "{% for turn in messages %}{% if turn.role == 'user' %}<|user|>"
    "{% if messages[0].role == 'system' and (loop.last or loop.index0 == messages | length - 2) %}"
    "{{ messages[0].content }}{% endif %}{{ turn.content }}{% elif turn.role == 'assistant' %}"
    "<|assistant|>{{ turn.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
HARMONY = (  # as gpt-oss's: the last answer ends otherwise, with thoughts before it
    "{% for turn in messages %}<|start|>{{ turn.role }}"
    "{% if turn.role == 'assistant' and loop.last %}{% if turn.thinking %}"
    "<|channel|>{{ turn.thinking }}<|end|><|start|>assistant{% endif %}"
    "<|channel|>{{ turn.content }}</s>{% else %}"
    "{{ '<|channel|>' if turn.role == 'assistant' }}{{ turn.content }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
NO_ENDS = (  # as GLM's: an answer ends where the next turn begins; no thoughts of earlier ones
    "{% for turn in messages %}<|{{ turn.role }}|>{% if turn.role == 'assistant' %}<think>"
    "{% if loop.last and '</think>' in turn.content %}{{ turn.content.split('</think>')[0] }}"
    "{% endif %}</think>{% endif %}{{ turn.content.split('</think>')[-1] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BEGUN = (  # as DeepSeek-R1's: the header begins a thought, and no answer has one
    "{% for turn in messages %}<|{{ turn.role }}|>{% if turn.tool_calls %}"
    "{% set call = turn.tool_calls[0].function %}"
    "{{ call.name + call.arguments + '<|end|>' }}{% else %}"
    "{{ turn.content.split('</think>')[-1] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}{# tools #}"
)
NO_ROOM = "{% for turn in messages %}{{ turn.role[0] }}{{ messages | length }}{% endfor %}"
TURNS = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
]
THOUGHT = {"role": "assistant", "content": "t</think>b"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "look", "arguments": '{"at": 1}'}}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


def template(folder: Path, text: str, ignored: Collection[str] = ()) -> ChatTemplate:
    tokenizer = load(make_tokenizer(folder) if not (folder / "tokenizer.json").exists() else folder)
    tokenizer.chat_template = text
    return ChatTemplate(tokenizer, ignored=ignored)


def chat(*turns: dict[str, Any], system: str = "", tools: Any = None) -> Conversation:
    return conversation_of("data.jsonl, line 3", list(turns or TURNS), system, tools)


def answers(found: Any) -> list[str]:
    return [found.text[begin:end] for begin, end in found.spans]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        (TEMPLATE, ["b<|end|>", "d<|end|>"]),
        (MARKED, ["b<|end|>", "d<|end|>"]),
        (THINKING, ["b<|end|>", "<think></think>d<|end|>"]),
    ],
    ids=["plain", "marked", "thinking"],
)
def test_every_answer_with_its_end(folder: Path, text: str, spans: list[str]) -> None:
    made = template(folder, text)
    found = made.rendered(chat())
    assert answers(found) == spans
    assert found.split == found.spans[-1][0]
    assert answers(made.rendered(chat().with_last_answer())) == spans[-1:]


@pytest.mark.parametrize(
    "text", [TEMPLATE, TEMPLATE.replace("turn.content", "turn.content | trim")]
)
def test_an_end_in_the_text_of_an_answer_does_not_end_it(folder: Path, text: str) -> None:
    turns = [TURNS[0], {**TURNS[1], "content": " say <|end|> twice"}, *TURNS[2:]]
    found = template(folder, text).rendered(chat(*turns))
    assert [each.strip() for each in answers(found)] == ["say <|end|> twice<|end|>", "d<|end|>"]
    assert not found.is_changed


def test_a_text_of_the_system_may_move(folder: Path) -> None:
    found = template(folder, LATE_SYSTEM).rendered(chat(system="S"))
    assert found.text == "<|user|>a<|assistant|>b<|end|><|user|>Sc<|assistant|>d<|end|>"
    assert answers(found) == ["b<|end|>", "d<|end|>"]


@pytest.mark.parametrize(
    ("text", "turns", "spans"),
    [
        (HARMONY, TURNS, ["<|channel|>b<|end|>", "<|channel|>d</s>"]),
        (
            HARMONY,
            [*TURNS[:3], {**TURNS[3], "thinking": "t"}],
            ["<|channel|>b<|end|>", "<|channel|>t<|end|><|start|>assistant<|channel|>d</s>"],
        ),
        (NO_ENDS, TURNS, ["<think></think>b<|user|>", "<think></think>d<|user|>"]),
        (
            NO_ENDS,
            [TURNS[0], THOUGHT, TURNS[2], THOUGHT],
            ["<think></think>b<|user|>", "<think>t</think>b<|user|>"],
        ),
        (BEGUN, TURNS, ["b<|end|>", "d<|end|>"]),
        (BEGUN, [TURNS[0], CALL, TURNS[2], THOUGHT], ['look{"at": 1}<|end|>', "b<|end|>"]),
        (
            THINKING,
            [TURNS[0], THOUGHT, *TURNS[2:]],
            ["t</think>b<|end|>", "<think></think>d<|end|>"],
        ),
    ],
    ids=[
        "harmony",
        "harmony thinks",
        "no ends",
        "no ends thinks",
        "begun",
        "begun calls",
        "thinks",
    ],
)
def test_templates_of_models_that_think(
    folder: Path, text: str, turns: list[dict[str, Any]], spans: list[str]
) -> None:
    found = template(folder, text).rendered(chat(*turns))
    assert answers(found) == spans
    assert found.text.endswith(spans[-1])
    said = [turn.get(name) or "" for turn in turns[1::2] for name in ("content", "thinking")]
    assert found.is_changed == any(each not in "".join(spans) for each in said)


def test_a_chat_may_begin_with_an_answer(folder: Path) -> None:
    """As many of ShareGPT's; a template that has no header for no turns, or wants a question."""
    wants = TEMPLATE + "{% if not messages | selectattr('role', 'equalto', 'user') | list %}"
    wants += "{{ raise_exception('No user query') }}{% endif %}"
    for text in (TEMPLATE, wants):
        found = template(folder, text).rendered(chat(*TURNS[1:], system="S"))
        assert answers(found) == ["b<|end|>", "d<|end|>"]
    assert answers(template(folder, TEMPLATE).rendered(chat(TURNS[1]))) == ["b<|end|>"]


def test_a_template_may_take_no_chat_but_those_of_the_data(folder: Path) -> None:
    wants = TEMPLATE + "{% if messages[0].role != 'system' %}{{ raise_exception('No system') }}"
    found = template(folder, wants + "{% endif %}").rendered(chat(system="S"))
    assert answers(found) == ["b<|end|>", "d<|end|>"]


def test_parts_that_a_template_marks_of_one_answer_are_one(folder: Path) -> None:
    twice = MARKED.replace(
        "<|end|>{% endgen", "{% endgeneration %}{% generation %}<|end|>{% endgen"
    )
    found = template(folder, twice).rendered(chat())
    assert answers(found) == ["b", "<|end|>", "d", "<|end|>"]
    assert found.text[found.split :] == "d<|end|>"
    with pytest.raises(BadRequest, match=r"marks 4 parts .* 2 assistant turns .1 of them"):
        template(folder, twice).rendered(chat().with_last_answer())


def test_what_comes_after_the_last_answer_is_left_out(folder: Path) -> None:
    turns = [*TURNS, {"role": "user", "content": "e"}]
    assert template(folder, TEMPLATE).rendered(chat(*turns)).text.endswith("d<|end|>")


def test_turns_of_weight_zero_are_not_learned_from(folder: Path) -> None:
    turns = [TURNS[0], {**TURNS[1], "weight": 0}, *TURNS[2:]]
    for text in (TEMPLATE, MARKED):
        assert answers(template(folder, text).rendered(chat(*turns))) == ["d<|end|>"]


def test_calls_of_tools_are_answers(folder: Path) -> None:
    text = (
        "{% for tool in tools %}{{ tool.name }};{% endfor %}{% for turn in messages %}"
        "<|{{ turn.role }}|>{{ turn.content }}{% for call in turn.tool_calls %}"
        "<call>{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
        "<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    turns = [
        {"from": "human", "value": "a"},
        {"from": "function_call", "value": '{"name": "look", "arguments": {"at": 1}}'},
        {"from": "observation", "value": "seen"},
        {"from": "gpt", "value": "b"},
    ]
    found = template(folder, text).rendered(chat(*turns, tools=[{"name": "look"}]))
    assert found.text.startswith("look;<|user|>a<|end|>")
    assert answers(found) == ['<call>look{"at": 1}<|end|>', "b<|end|>"]


def test_a_template_without_room_for_what_the_data_has_is_refused(folder: Path) -> None:
    refused = "{% for turn in messages %}{% if turn.role == 'system' %}"
    refused += "{{ raise_exception('System role not supported') }}{% endif %}{% endfor %}"
    with pytest.raises(BadFile, match=r"line 3: .* rejects it: System role not supported"):
        template(folder, refused).rendered(chat(system="S"))
    silent = TEMPLATE.replace("<|{{", "{% if turn.role != 'tool' %}<|{{").replace(
        "<|end|>{% endfor", "<|end|>{% endif %}{% endfor"
    )
    turns = [*TURNS[:1], {"role": "tool", "content": "x"}, TURNS[1]]
    with pytest.raises(BadFile, match=r'turn 2 has the role "tool", which .* leaves out; use'):
        template(folder, silent).rendered(chat(*turns))
    with pytest.raises(
        BadRequest, match=r"line 3: has tools, but the chat template of .* does not show tools"
    ):
        template(folder, TEMPLATE).rendered(chat(tools=[{"name": "f"}]))
    half = MARKED.replace("'assistant' %}{% gen", "'assistant' and loop.last %}{% gen")
    with pytest.raises(BadRequest, match=r"marks 1 parts .* but there are 2 assistant turns"):
        template(folder, half).rendered(chat())


def test_answers_that_cannot_be_told_are_refused(folder: Path) -> None:
    counts = "{% for turn in messages %}<{{ messages | length }}>{{ turn.content }};{% endfor %}"
    with pytest.raises(
        BadRequest, match="renders turn 4 differently if its text or later turns change"
    ):
        template(folder, counts).rendered(chat().with_last_answer())
    vague = (
        "{% for turn in messages %}{{ turn.content }}"
        "{% if not loop.last and turn.role == 'assistant' %}+{% else %};{% endif %}{% endfor %}"
    )
    with pytest.raises(BadRequest, match="renders turn 2 differently if its text or"):
        template(folder, vague).rendered(chat())


@pytest.mark.parametrize(
    ("turn", "field"),
    [
        ({**TURNS[1], "tool_calls": CALL["tool_calls"]}, "tool_calls"),
        (CALL, "tool_calls"),
        ({**TURNS[1], "reasoning_content": "t"}, "reasoning_content"),
        ({**TURNS[1], "function_call": {"name": "f", "arguments": "{}"}}, "function_call"),
    ],
)
@pytest.mark.parametrize("text", [TEMPLATE, MARKED], ids=["plain", "marked"])
def test_a_field_that_the_template_leaves_out_is_refused_or_accepted(
    folder: Path, text: str, turn: dict[str, Any], field: str
) -> None:
    turns = [TURNS[0], turn, *TURNS[2:]]
    refusal = rf'turn 2 has {field}, which .* train without it by .*ignore_fields = \["{field}"\]'
    with pytest.raises(BadFile, match=refusal):
        template(folder, text).rendered(chat(*turns))
    accepting = template(folder, text, ignored=[field])
    assert accepting.rendered(chat(*turns)).left_out[0] == field
    assert accepting.rendered(chat()).left_out == ()


def test_a_later_call_or_its_arguments_may_be_left_out(folder: Path) -> None:
    shown = (
        "{% for turn in messages %}<|{{ turn.role }}|>{{ turn.content }}{% if turn.tool_calls %}"
    )
    ends = "{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    names = shown + "{% for c in turn.tool_calls %}{{ c.function.name }}{% endfor %}" + ends
    with pytest.raises(BadFile, match="turn 2 has tool_calls with arguments, which"):
        template(folder, names).rendered(chat(TURNS[0], CALL))
    first = shown + "{{ turn.tool_calls[0].function.name }}"
    first += "{{ turn.tool_calls[0].function.arguments }}" + ends
    made = template(folder, first)
    assert made.rendered(chat(TURNS[0], CALL)).left_out == ()
    two = {**CALL, "tool_calls": [*CALL["tool_calls"], *CALL["tool_calls"]]}
    with pytest.raises(BadFile, match="turn 2 has tool_calls, which"):
        made.rendered(chat(TURNS[0], two))


def test_thoughts_of_the_last_answer_alone_are_shown(folder: Path) -> None:
    """Under two names in the data, of which the template knows one."""
    thoughts = [f"why {turn['content']}" for turn in TURNS]
    thinks = [
        {**turn, "thinking": thought, "reasoning": thought}
        for turn, thought in zip(TURNS, thoughts, strict=True)
    ]
    turns = [TURNS[0], thinks[1], TURNS[2], thinks[3]]
    found = template(folder, HARMONY).rendered(chat(*turns))
    assert found.is_changed  # of the first answer
    assert found.left_out == ("reasoning",)


def test_other_fields_are_named(folder: Path) -> None:
    turns = [{**TURNS[0], "time": "12:00", "name": "Ann"}, TURNS[1]]
    assert template(folder, TEMPLATE).rendered(chat(*turns)).left_out == ("time", "name")


ALWAYS_THINKS = (  # as Qwen3's without thinking: the header has thoughts that are none
    "{% for turn in messages %}<|{{ turn.role }}|>{% if turn.reasoning_content %}"
    "<think>{{ turn.reasoning_content }}</think>{% endif %}{{ turn.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think></think>{% endif %}"
)


def test_thoughts_of_an_earlier_answer_are_learned_where_the_header_has_others(
    folder: Path,
) -> None:
    turns = [TURNS[0], {**TURNS[1], "reasoning_content": "t"}, *TURNS[2:]]
    found = template(folder, ALWAYS_THINKS).rendered(chat(*turns))
    assert answers(found) == ["<think>t</think>b<|end|>", "d<|end|>"]
    assert not found.is_changed


@pytest.mark.parametrize(
    "text", [TEMPLATE, MARKED, THINKING, LATE_SYSTEM, HARMONY, NO_ENDS, BEGUN, ALWAYS_THINKS]
)
def test_chats_of_the_same_roles_are_rendered_together_as_each_alone(
    folder: Path, text: str
) -> None:
    texts = ("x <|end|> y", " spaced \n", "t</think>b", "<think>", "好", "\u20420\u2042")
    chats = [
        chat(*({**turn, "content": content + turn["content"]} for turn in TURNS))
        for content in texts
    ]
    chats.append(chat(*TURNS[:2]).with_last_answer())
    made = template(folder, text)
    made.rendered(chat())  # which shows what fields the template has
    alone = template(folder, text)
    for found, each in zip(made.rendered_together(chats), chats, strict=True):
        try:
            wanted = alone.rendered(each)
        except BadRequest:
            continue
        assert found == wanted


def test_what_a_template_rejects_among_others_is_named(folder: Path) -> None:
    strict = TEMPLATE.replace(
        "{% for",
        "{% if 'bad' in messages[0].content %}{{ raise_exception('no') }}{% endif %}{% for",
        1,
    )
    made = template(folder, strict)
    made.rendered(chat())
    with pytest.raises(BadFile, match=r"data\.jsonl, line 3: .* rejects it: no"):
        made.rendered_together([chat(), chat({**TURNS[0], "content": "bad"}, TURNS[1])])
