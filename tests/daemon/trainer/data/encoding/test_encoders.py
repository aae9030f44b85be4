"""Which tokens of a chat count in the loss: exactly those of its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.daemon.trainer.data.encoding.test_chat_template import MARKED, NO_ENDS, TURNS
from tests.daemon.trainer.finetuning import TEMPLATE, load, make_tokenizer
from zerotools.core.errors import BadFile, BadRequest
from zerotools.jobs.datafiles.conversations import conversation_of
from zerotools.jobs.datafiles.examples_and_documents import TextExample
from zerotools.jobs.jobfile_tables.data import DataSpec
from zerotoolsd.trainer.data.encoding.encoded_example import LEARNED, Encoded
from zerotoolsd.trainer.data.encoding.encoders import make_encoder

pytestmark = pytest.mark.torch
WORDS = st.text(st.sampled_from("ab 好é\n<|>"), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {
        name: load(make_tokenizer(tmp_path_factory.mktemp(name), template=text))
        for name, text in (("plain", TEMPLATE), ("marked", MARKED))
    }


def encode(tokenizer: Any, turns: list[dict[str, Any]], **keys: Any) -> Encoded:
    encoder = make_encoder(tokenizer, DataSpec(**keys), encoder_decoder=False)
    [found] = encoder.encoded(iter([conversation_of("a:1", turns, "", None)]))
    return found


def said_text(tokenizer: Any, example: Encoded) -> str:
    """What counts in the loss, a bar between parts."""
    parts, before = [""], True
    for number in example.marked.tolist():
        if number >= LEARNED:
            parts[-1] += tokenizer.decode([number & ~LEARNED]) if before else ""
            before = True
        elif before and parts[-1]:
            parts.append("")
    return "|".join(part for part in parts if part)


@given(texts=st.lists(WORDS, min_size=2, max_size=6))
@settings(max_examples=40, deadline=None)
def test_the_marks_are_those_of_transformers_and_do_not_depend_on_the_kind_of_template(
    texts: list[str], tokenizers: dict[str, Any]
) -> None:
    texts = texts[: len(texts) // 2 * 2]
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": text}
        for number, text in enumerate(texts)
    ]
    marked, plain = encode(tokenizers["marked"], turns), encode(tokenizers["plain"], turns)
    own = tokenizers["marked"].apply_chat_template(
        turns, return_assistant_tokens_mask=True, return_dict=True
    )
    assert marked.source + marked.target == list(own["input_ids"])
    assert [int(number >= LEARNED) for number in marked.marked] == own["assistant_masks"]
    assert plain.marked.tolist() == marked.marked.tolist()
    assert plain.split == marked.split


def test_all_answers_or_the_last(tokenizers: dict[str, Any]) -> None:
    for tokenizer in tokenizers.values():
        assert said_text(tokenizer, encode(tokenizer, TURNS)) == "b<|end|>|d<|end|>"
        last = encode(tokenizer, TURNS, loss_on="last")
        assert said_text(tokenizer, last) == "d<|end|>"
        assert last.split == encode(tokenizer, TURNS).split


def test_a_tokenizer_without_places_gives_the_same(tokenizers: dict[str, Any]) -> None:
    class Slow:
        """As those of Python are: no offsets."""

        is_fast = False

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def __call__(self, *args: Any, **options: Any) -> Any:
            assert "return_offsets_mapping" not in options
            return self._inner(*args, **options)

    for tokenizer in tokenizers.values():
        slow, fast = encode(Slow(tokenizer), TURNS), encode(tokenizer, TURNS)
        assert slow.marked.tolist() == fast.marked.tolist()
        assert slow.split == fast.split


def test_the_oldest_turns_give_way_and_every_end_stays(tokenizers: dict[str, Any]) -> None:
    tokenizer = tokenizers["plain"]
    whole = encode(tokenizer, TURNS)
    cut = encode(tokenizer, TURNS, sequence_length=len(whole.marked) - 3)
    assert cut.marked.tolist() == whole.marked[2:].tolist()
    assert (cut.source_lost, cut.target_lost) == (2, 0)
    long = [TURNS[0], {"role": "assistant", "content": "0123456789" * 9}]
    cut = encode(tokenizer, long, sequence_length=20)
    assert len(cut.marked) == 21
    assert tokenizer.decode(cut.target).startswith("0123456789")
    assert tokenizer.decode(cut.target).endswith("<|end|>")
    assert (cut.source_lost, cut.target_lost > 0) == (len(encode(tokenizer, long).source) - 1, True)


def test_jobs_of_version_0_2_are_cut_as_they_were(tokenizers: dict[str, Any]) -> None:
    tokenizer = tokenizers["plain"]
    older = {"truncation": "separate", "loss_on": "last"}
    encoder = make_encoder(
        tokenizer,
        DataSpec(**older, max_source_length=2, max_target_length=3, sequence_length=256),
        encoder_decoder=False,
        positions=64,
    )
    [found] = encoder.encoded(iter([TextExample("a:1", "c", "0123456789", (("a", "b"),))]))
    assert tokenizer.decode(found.source) == "<|end|><|assistant|>"
    assert tokenizer.decode(found.target) == "012"


def test_an_end_that_the_template_lacks_is_not_added_for_jobs_of_version_0_2(
    tmp_path: Path,
) -> None:
    tokenizer = load(make_tokenizer(tmp_path, template=NO_ENDS))
    assert said_text(tokenizer, encode(tokenizer, TURNS, loss_on="last")).endswith("d<|user|>")
    older = {"truncation": "separate", "max_source_length": 9, "max_target_length": 20}
    assert said_text(tokenizer, encode(tokenizer, TURNS, loss_on="last", **older)).endswith("d")


def test_a_model_of_few_positions_keeps_what_it_reads(tmp_path: Path) -> None:
    tokenizer = load(make_tokenizer(tmp_path))
    record = TextExample("a:1", "0123456789" * 9, "b")
    for keys, positions, length in (({}, 16, 17), ({"sequence_length": 8}, 16, 9), ({}, None, 93)):
        encoder = make_encoder(
            tokenizer, DataSpec(**keys), encoder_decoder=False, positions=positions
        )
        [found] = encoder.encoded(iter([record]))
        assert len(found.marked) == length
        assert tokenizer.decode(found.target) == "b</s>"
        assert len(found.marked) + found.source_lost == 93


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(make_tokenizer(tmp_path_factory.mktemp("plain")))


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(make_tokenizer(tmp_path_factory.mktemp("chat"), template=TEMPLATE))


def encode_plain(
    tokenizer: Any, *records: TextExample, seq2seq: bool = False, **keys: Any
) -> list[Encoded]:
    encoder = make_encoder(tokenizer, DataSpec(**keys), encoder_decoder=seq2seq)
    return list(encoder.encoded(iter(records)))


def texts(tokenizer: Any, example: Encoded) -> tuple[str, str]:
    return tokenizer.decode(example.source), tokenizer.decode(example.target)


def test_a_prompt_its_response_and_the_end(plain: Any) -> None:
    [found] = encode_plain(plain, TextExample("a:1", "红裙子?", "好看!"))
    assert texts(plain, found) == ("<s>红裙子?", "好看!</s>")


def test_a_history_is_put_before_in_rounds(plain: Any) -> None:
    [found] = encode_plain(plain, TextExample("a:1", "c", "d", (("a", "b"),)))
    source = "<s>[Round 0]\n问：a\n答：b\n[Round 1]\n问：c\n答："
    assert texts(plain, found) == (source, "d</s>")


def test_the_end_of_a_long_source_is_cut_and_a_long_target_keeps_its_end(plain: Any) -> None:
    record = TextExample("a:1", "0123456789" * 9, "abcdefgh" * 9)
    [found] = encode_plain(plain, record, max_source_length=6, max_target_length=5)
    assert (len(found.source), len(found.target)) == (6, 5)
    source, target = texts(plain, found)
    assert source.startswith("<s>0")
    assert target.endswith("</s>")
    [lost] = encode_plain(plain, record, max_source_length=1, max_target_length=1)
    assert (lost.is_source_lost, lost.is_target_lost) == (True, True)


def test_a_chat_is_rendered_by_the_template(chat: Any) -> None:
    record = TextExample("a:1", "c", "d", (("a", "b"),))
    [found] = encode_plain(chat, record)
    turns = "<|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>"
    assert texts(chat, found) == (turns, "d<|end|>")
    [off] = encode_plain(chat, TextExample("a:1", "c", "d"), chat_template="off")
    assert texts(chat, off) == ("<s>c", "d</s>")
    [cut] = encode_plain(chat, record, max_source_length=2)
    assert texts(chat, cut)[0] == "<|end|><|assistant|>"


def test_an_encoder_decoder_gets_the_tokenizers_own_ends(tmp_path: Path) -> None:
    tokenizer = load(make_tokenizer(tmp_path, seq2seq=True))
    record = TextExample("a:1", "abc" * 30, "de")
    [found] = encode_plain(tokenizer, record, seq2seq=True, max_source_length=4)
    assert len(found.source) == 4
    assert texts(tokenizer, found)[0].endswith("</s>")
    assert texts(tokenizer, found)[1] == "de</s>"
    [lost] = encode_plain(tokenizer, record, seq2seq=True, max_source_length=1)
    assert (lost.is_source_lost, lost.is_target_lost) == (True, False)


def test_what_cannot_be_encoded_is_refused(plain: Any, chat: Any, tmp_path: Path) -> None:
    with pytest.raises(
        BadRequest, match=r'chat_template = "on": the tokenizer in .* has no chat template'
    ):
        make_encoder(plain, DataSpec(chat_template="on"), encoder_decoder=False)
    strict = load(make_tokenizer(tmp_path, template="{{ raise_exception('no such role') }}"))
    with pytest.raises(BadFile, match=r"data\.json, line 3: .* rejects it: no such role"):
        encode_plain(strict, TextExample("data.json, line 3", "a", "b"))
    fickle = TEMPLATE.replace("<|{{", "<{{ messages | length }}|{{")
    other = load(make_tokenizer(tmp_path / "fickle", template=fickle))
    with pytest.raises(BadRequest, match="renders turn 2 differently if its text or"):
        encode_plain(other, TextExample("a:1", "a", "b"))
    plain.eos_token = None
    with pytest.raises(BadRequest, match="has no eos_token"):
        make_encoder(plain, DataSpec(), encoder_decoder=False)
