"""Bad data and models that do not fit end every rank with one sentence, before the first step."""

from __future__ import annotations

import json
import struct
from array import array
from math import prod
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA, job, resolved, start
from tests.daemon.trainer.finetuning import VOCABULARY, make_tokenizer, write_lines
from tests.daemon.trainer.test_finetuning import TINY_T5

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("rank_refusals.py")
LLAMA = {**TINY_LLAMA, "vocab_size": VOCABULARY}
MAMBA = {
    "model_type": "mamba",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 1,
}
GOOD = {"prompt": "a question", "response": "an answer"}

SENTENCES = {
    "broken": "late.json, line 301: is not JSON: Expecting property name",
    "column": 'other.json, line 301: has no column "prompt" (data.prompt_column); it has q',
    "encoding": "bytes.json, line 2: is not UTF-8 (0xe9",
    "nothing": "nothing.json: contains no examples",
    "empty": "each of the 2 examples has an empty prompt or response",
    "sources": "data.max_source_length = 1: this leaves no text of the prompt of any example in ",
    "targets": "data.max_target_length = 1: this leaves no text of the response of any",
    "positions": "but the model has only 64 positions: lower data.max_source_length",
    "packs": "but a packed sequence has data.sequence_length = 4 tokens: raise this key",
    "packs-of-prompts": "data.sequence_length = 4: this leaves no text of the prompt of any",
    "packed-t5": "data.packing: model_type 't5' has an encoder and a decoder",
    "text-t5": "data.text: model_type 't5' has an encoder and a decoder",
    "packed-mamba": "data.packing: in a mamba model of transformers one packed example influences",
    "packed-length": "data.packing = true: data.sequence_length is missing, and the model's "
    "config has",
    "vocabulary": "token ids, but the model's vocab_size is 30: raise vocab_size",
    "ids": "the data needs 500 token ids, but the model's vocab_size is",
    "negative": "negative.bin: token 1 is -7, but token ids are 0 or more",
    "short": "data.tokens has 3 tokens, but one sequence takes data.sequence_length + 1 = 33",
    "tokenizer": "damaged cannot be loaded",
    "fraction": "eval.fraction = 0.9 of 4 sequences leaves no sequence for training",
    "eval": "eval.files: no file matches",
    "new-tokens": "eval.max_new_tokens = 60: the longest prompt has ",
    "weights": "has neither model.safetensors nor model.safetensors.index.json",
    "quantised": "model.embed_tokens.weight is int8: quantised weights cannot be trained",
    "own-code": "transformers does not know model_type 'chatglm'; the code that comes with the",
    "no-text": "model_type 'vit' is not a language model",
    "warm-up": "train.warmup_steps = 9: must be at most train.steps, which is 1 (1 epochs of 4",
}


OLDER = {
    "truncation": "separate",
    "max_source_length": 1024,
    "max_target_length": 128,
    "loss_on": "last",
}


def bad_jobs(folder: Path) -> dict[str, dict[str, Any]]:
    tokenizer = str(make_tokenizer(folder / "tokenizer"))
    good = str(write_lines(folder / "good.json", [GOOD] * 4))
    (folder / "damaged").mkdir()
    (folder / "damaged/tokenizer.json").write_text("{")
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(LLAMA))
    quantised = folder / "quantised"
    quantised.mkdir()
    (quantised / "config.json").write_text(json.dumps(LLAMA))
    shape = [VOCABULARY, LLAMA["hidden_size"]]
    entry = {"dtype": "I8", "shape": shape, "data_offsets": [0, prod(shape)]}
    header = json.dumps({"model.embed_tokens.weight": entry}).encode()
    (quantised / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(prod(shape))
    )

    def lines(name: str, *rows: dict[str, Any], rest: bytes = b"") -> str:
        path = write_lines(folder / name, rows)
        path.write_bytes(path.read_bytes() + rest)
        return str(path)

    def numbers(name: str, kind: str, *ids: int) -> str:
        (folder / name).write_bytes(array(kind, ids).tobytes())
        return str(folder / name)

    def on(path: str, model: Any = LLAMA, keys: Any = None, **changes: Any) -> dict[str, Any]:
        data = {"text": [], "examples": [path], "tokenizer": tokenizer, **(keys or {})}
        return {"model": {"config": model}, "data": data, **changes}

    def tokens(path: str, kind: str) -> dict[str, Any]:
        data = {"text": [], "tokens": [path], "token_type": kind}
        return {"model": {"config": LLAMA}, "data": data}

    generated = {"files": [good], "predict_with_generate": True}
    long = {"prompt": "0123456789" * 20, "response": "9876543210" * 20}
    return {
        "broken": on(lines("late.json", *[GOOD] * 300, rest=b"{oops")),
        "column": on(lines("other.json", *[GOOD] * 300, {"q": "a", "response": "b"})),
        "encoding": on(lines("bytes.json", GOOD, rest=b'{"prompt": "\xe9"}')),
        "nothing": on(lines("nothing.json", rest=b"\n\n")),
        "empty": on(lines("empty.json", {**GOOD, "prompt": ""}, {**GOOD, "response": None})),
        "sources": on(good, keys={"max_source_length": 1}),
        "targets": on(good, keys={"max_target_length": 1}),
        "positions": on(lines("long.json", GOOD, long), keys=OLDER),
        "packs": on(good, keys={**OLDER, "packing": True, "sequence_length": 4}),
        "packs-of-prompts": on(good, keys={"packing": True, "sequence_length": 4}),
        "packed-t5": on(good, TINY_T5, {"packing": True}),
        "text-t5": {"model": {"config": TINY_T5}},
        "packed-mamba": on(good, MAMBA, {"packing": True, "sequence_length": 32}),
        "packed-length": on(good, MAMBA, {"packing": True}),
        "vocabulary": on(good, {**LLAMA, "vocab_size": 30}),
        "ids": tokens(numbers("ids.bin", "H", *range(500)), "uint16"),
        "negative": tokens(numbers("negative.bin", "i", 1, -7, 3), "int32"),
        "short": tokens(numbers("short.bin", "I", 1, 2, 3), "uint32"),
        "tokenizer": on(good, keys={"tokenizer": str(folder / "damaged")}),
        "fraction": on(good, eval={"fraction": 0.9}),
        "eval": on(good, eval={"files": [str(folder / "no-such-file")]}),
        "new-tokens": on(good, eval={**generated, "max_new_tokens": 60}),
        "weights": {**on(good), "model": {"path": str(folder / "model")}},
        "quantised": {**on(good), "model": {"path": str(quantised)}},
        "own-code": on(good, {"model_type": "chatglm", "auto_map": {"AutoModel": "m.M"}}),
        "no-text": on(good, {"model_type": "vit"}),
        "warm-up": on(good, train={"steps": None, "epochs": 1, "warmup_steps": 9}),
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[str, list[str | None]]:
    """By name of the job, what both ranks were told."""
    directory = tmp_path_factory.mktemp("refusals")
    (directory / "out").mkdir()
    jobs = bad_jobs(tmp_path_factory.mktemp("bad"))
    full = {name: job(text, ranks=2, **changes) for name, changes in jobs.items()}
    (directory / "out" / "runs.json").write_text(
        json.dumps({name: resolved(tree) for name, tree in full.items()})
    )
    attempt = start(directory, job(text, ranks=2), script=SCRIPT)
    assert attempt.finish() == [0, 0], attempt.log()
    found: dict[str, list[str | None]] = json.loads(attempt.log().splitlines()[-1])
    return found


@pytest.mark.parametrize("name", SENTENCES)
def test_every_rank_is_told_the_same(told: dict[str, list[str | None]], name: str) -> None:
    first, second = told[name]
    assert first is not None
    assert SENTENCES[name] in first
    assert "\n" not in first
    assert second is not None
    assert second.partition(": ")[2] == first.partition(": ")[2]
