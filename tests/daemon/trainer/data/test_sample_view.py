"""The answer that shows examples has room for whatever they hold."""

from __future__ import annotations

import json

import numpy as np
import pytest

from zerotoolsd.service.admission.interpreter_check import LONGEST_ANSWER
from zerotoolsd.trainer.data.encoding.encoded import SAID, Encoded
from zerotoolsd.trainer.data.sample_view import MOST_BYTES, SampleView, json_bytes

ROOM_FOR_NOTES = 16_000
TEXTS = {
    "English": "word ",
    "Chinese": "中文模型",
    "emoji": "🙂🙃",
    "control": "\x01\x02",
    "quotes": '"\\\n',
    "one side of a pair": "\ud83d",
    "nothing": "",
}


def of_turns(text: str, turns: int, place: str = "a.jsonl, line 1") -> tuple[SampleView, Encoded]:
    """An example in which every other token is trained, each of which is this text."""
    marked = np.arange(turns, dtype=np.uint32)
    marked[1::2] |= SAID
    return SampleView(20, lambda ids: text * len(ids)), Encoded(place, marked, 0)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("turns", [3, 2000])
def test_an_answer_has_room_for_all_that_is_shown(text: str, turns: int) -> None:
    view, example = of_turns(text * 3000, turns, place="/目录" * 1000 + "/a.jsonl, line 1")
    for _ in range(20):
        view.add(example)
    answer = view.answer(0)
    assert json_bytes(answer["examples"]) < LONGEST_ANSWER - ROOM_FOR_NOTES
    assert len(answer["examples"]) == 20
    assert all(each["text_cut"] or not text for each in answer["examples"][:1])


def test_what_fits_is_shown_whole() -> None:
    view, example = of_turns("中文", 6)
    view.add(example)
    (shown,) = view.answer(0)["examples"]
    assert (shown["place"], shown["text_cut"]) == ("a.jsonl, line 1", False)
    assert [part["text"] for part in shown["parts"]] == ["中文"] * 6
    assert [part["trained"] for part in shown["parts"]] == [False, True] * 3


def test_one_long_example_is_cut_where_the_room_ends() -> None:
    view = SampleView(1, lambda ids: "中" * len(ids))
    view.add(Encoded("a", np.full(50_000, 7, np.uint32), 0))
    (shown,) = view.answer(0)["examples"]
    (part,) = shown["parts"]
    assert shown["text_cut"]
    assert MOST_BYTES - 100 < len(json.dumps(part, ensure_ascii=False).encode()) <= MOST_BYTES
    assert shown["tokens"] == 50_000
