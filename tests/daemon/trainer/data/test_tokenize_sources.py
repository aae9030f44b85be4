"""What rank 0 reads: examples and text, taken again from the cache, or made where there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.launching import TINY_LLAMA, job
from tests.daemon.trainer.finetuning import VOCABULARY, adverts, make_tokenizer, write_lines
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.trainer.data.encode_examples import ModelInput
from zerotoolsd.trainer.data.encoding.encoded_example import LEARNED
from zerotoolsd.trainer.data.preview_examples import sample_data
from zerotoolsd.trainer.data.token_cache import TokenCache
from zerotoolsd.trainer.data.tokenize_sources import IDS, SourceReader, sources_of, tokenizer_for

pytestmark = pytest.mark.torch


def reader(folder: Path, cache: TokenCache | None, **data: Any) -> SourceReader:
    tree = job(Path("/t"), model={"config": TINY_LLAMA}, data={"text": [], **data})
    spec = job_from_dict(tree, source="job")
    (folder / "run").mkdir(exist_ok=True)
    positions = ModelInput(encoder_decoder=False, positions=64)
    return SourceReader(spec, folder / "run", positions, cache, tokenizer_for(spec))


def examples(folder: Path) -> dict[str, Any]:
    columns = {"prompt_column": "content", "response_column": "summary"}
    tokenizer = folder / "tokenizer"
    if not tokenizer.exists():
        make_tokenizer(tokenizer)
    path = write_lines(folder / "a.jsonl", adverts(30))
    return {"examples": [str(path)], "tokenizer": str(tokenizer), **columns}


def test_a_restart_and_another_job_take_what_was_tokenised(tmp_path: Path) -> None:
    cache, keys = TokenCache(tmp_path / "cache", 1 << 30), examples(tmp_path)
    first = reader(tmp_path, cache, **keys)
    [source] = sources_of(first.spec)
    with first.until_opened:
        made = first.read(source)
        assert made.ids is not None
        written = made.ids.read_bytes()
    again = reader(tmp_path, cache, **keys, packing=True, chat_template="auto")
    again = replace(again, tokenizer=None)  # nothing is tokenised
    with again.until_opened:
        taken = again.read(source)
        assert taken.ids is not None
        assert taken.ids.read_bytes() == written
    assert (taken.tokens, taken.vocabulary, taken.longest) == (
        made.tokens,
        made.vocabulary,
        made.longest,
    )
    ids = np.frombuffer(written, "<u4") & ~np.uint32(LEARNED)
    assert made.vocabulary == ids.max() + 1 < VOCABULARY  # also where it could have more
    assert taken.notes[1:] == made.notes
    assert taken.notes[0].startswith("data.examples: tokenised data of an earlier job is used")
    other = reader(tmp_path, cache, **keys, sequence_length=60)
    with other.until_opened:
        assert not other.read(source).notes[0].startswith("data.examples: taken")


def test_text_too_and_damage_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the red dress\n" * 90)
    keys = {"text": [str(tmp_path / "a.txt")], "tokenizer": str(make_tokenizer(tmp_path / "tok"))}
    cache = TokenCache(tmp_path / "cache", 1 << 30)
    first = reader(tmp_path, cache, **keys)
    [source] = sources_of(first.spec)
    with first.until_opened:
        first.read(source)
    [ids] = (tmp_path / "cache" / "entries").glob("*/ids.u32")
    before = ids.read_bytes()
    ids.write_bytes(before[:-4])
    second = reader(tmp_path, cache, **keys)
    found = second.read(source)
    second.until_opened.close()
    assert (
        "is damaged (ids.u32 has changed since it was written), so it is built again"
        in found.notes[0]
    )
    assert ids.read_bytes() == before


def test_documents_without_an_end_between_them_are_noted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    named = make_tokenizer(tmp_path / "tokenizer")
    keys = {"text": [str(tmp_path / "a.jsonl")], "tokenizer": str(named)}
    whole = reader(tmp_path, None, **keys)
    with whole.until_opened:
        assert whole.read(*sources_of(whole.spec)).notes == ()
    config = json.loads((named / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (named / "tokenizer_config.json").write_text(json.dumps(config))
    lacking = reader(tmp_path, None, **keys)
    with lacking.until_opened:
        [note] = lacking.read(*sources_of(lacking.spec)).notes
    assert note.startswith(f"data.text: the tokenizer in {named} has no eos_token, so no token")
    for show in (0, 1):  # and when the job is submitted
        positions = ModelInput(encoder_decoder=False, positions=64)
        assert sample_data(lacking.spec, positions, lambda _: None, show).notes == [note]


def test_without_a_cache_or_one_that_cannot_be_written_the_run_has_its_own(tmp_path: Path) -> None:
    keys = examples(tmp_path)
    (tmp_path / "file").touch()
    for cache in (None, TokenCache(tmp_path / "file", 1 << 30)):
        own = reader(tmp_path, cache, **keys)
        with own.until_opened:
            found = own.read(sources_of(own.spec)[0])
            assert found.ids is not None
            assert found.ids.parent.parent == tmp_path / "run"
        assert list((tmp_path / "run").rglob(IDS)) == []
        said = "cannot be stored in" in found.notes[0]
        assert said == (cache is not None)


def test_a_mixture_has_a_source_for_each_weight(tmp_path: Path) -> None:
    write_lines(tmp_path / "b.jsonl", adverts(4))
    keys = examples(tmp_path)
    keys["examples"] = [*keys["examples"], str(tmp_path / "b.jsonl")]
    own = reader(tmp_path, None, **keys, mixture=[0.25, 0.75])
    sources = sources_of(own.spec)
    assert [source.patterns for source in sources] == [(path,) for path in keys["examples"]]
    with own.until_opened:
        assert [own.read(source).files for source in sources] == [1, 1]
