from pathlib import Path
from typing import Any

import pytest

from tests.daemon.trainer.finetuning import TEMPLATE, load, make_tokenizer
from zerotools.core.errors import BadFile, BadRequest
from zerotools.jobs.datafiles.example_files import TextExample
from zerotools.jobs.tables.data import DataSpec
from zerotoolsd.trainer.data.encoding.encoded import Encoded
from zerotoolsd.trainer.data.encoding.making import make_encoder

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(make_tokenizer(tmp_path_factory.mktemp("plain")))


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(make_tokenizer(tmp_path_factory.mktemp("chat"), template=TEMPLATE))


def encode(
    tokenizer: Any, *records: TextExample, seq2seq: bool = False, **keys: Any
) -> list[Encoded]:
    encoder = make_encoder(tokenizer, DataSpec(**keys), encoder_decoder=seq2seq)
    return list(encoder.encoded(iter(records)))


def texts(tokenizer: Any, example: Encoded) -> tuple[str, str]:
    return tokenizer.decode(example.source), tokenizer.decode(example.target)


def test_a_prompt_its_response_and_the_end(plain: Any) -> None:
    [found] = encode(plain, TextExample("a:1", "红裙子?", "好看!"))
    assert texts(plain, found) == ("<s>红裙子?", "好看!</s>")


def test_a_history_is_put_before_in_rounds(plain: Any) -> None:
    [found] = encode(plain, TextExample("a:1", "c", "d", (("a", "b"),)))
    source = "<s>[Round 0]\n问：a\n答：b\n[Round 1]\n问：c\n答："
    assert texts(plain, found) == (source, "d</s>")


def test_the_end_of_a_long_source_is_cut_and_a_long_target_keeps_its_end(plain: Any) -> None:
    record = TextExample("a:1", "0123456789" * 9, "abcdefgh" * 9)
    [found] = encode(plain, record, max_source_length=6, max_target_length=5)
    assert (len(found.source), len(found.target)) == (6, 5)
    source, target = texts(plain, found)
    assert source.startswith("<s>0")
    assert target.endswith("</s>")
    [lost] = encode(plain, record, max_source_length=1, max_target_length=1)
    assert (lost.is_source_lost, lost.is_target_lost) == (True, True)


def test_a_chat_is_rendered_by_the_template(chat: Any) -> None:
    record = TextExample("a:1", "c", "d", (("a", "b"),))
    [found] = encode(chat, record)
    turns = "<|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>"
    assert texts(chat, found) == (turns, "d<|end|>")
    [off] = encode(chat, TextExample("a:1", "c", "d"), chat_template="off")
    assert texts(chat, off) == ("<s>c", "d</s>")
    [cut] = encode(chat, record, max_source_length=2)
    assert texts(chat, cut)[0] == "<|end|><|assistant|>"


def test_an_encoder_decoder_gets_the_tokenizers_own_ends(tmp_path: Path) -> None:
    tokenizer = load(make_tokenizer(tmp_path, seq2seq=True))
    record = TextExample("a:1", "abc" * 30, "de")
    [found] = encode(tokenizer, record, seq2seq=True, max_source_length=4)
    assert len(found.source) == 4
    assert texts(tokenizer, found)[0].endswith("</s>")
    assert texts(tokenizer, found)[1] == "de</s>"
    [lost] = encode(tokenizer, record, seq2seq=True, max_source_length=1)
    assert (lost.is_source_lost, lost.is_target_lost) == (True, False)


def test_what_cannot_be_encoded_is_refused(plain: Any, chat: Any, tmp_path: Path) -> None:
    with pytest.raises(
        BadRequest, match=r'chat_template = "on": the tokenizer in .* has no chat template'
    ):
        make_encoder(plain, DataSpec(chat_template="on"), encoder_decoder=False)
    strict = load(make_tokenizer(tmp_path, template="{{ raise_exception('no such role') }}"))
    with pytest.raises(BadFile, match=r"data\.json, line 3: .* rejects it: no such role"):
        encode(strict, TextExample("data.json, line 3", "a", "b"))
    fickle = TEMPLATE.replace("<|{{", "<{{ messages | length }}|{{")
    other = load(make_tokenizer(tmp_path / "fickle", template=fickle))
    with pytest.raises(BadRequest, match="renders turn 2 differently depending on its text or"):
        encode(other, TextExample("a:1", "a", "b"))
    plain.eos_token = None
    with pytest.raises(BadRequest, match="has no eos_token"):
        make_encoder(plain, DataSpec(), encoder_decoder=False)
