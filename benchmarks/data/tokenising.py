"""How fast text, documents and chats are tokenised, and how soon a job on text takes a step.

    python -m benchmarks.data.tokenising OUT --megabytes 20 --restart 1000
    python -m benchmarks.data.tokenising OUT --megabytes 50 --against PYTHON --rounds 3 --new-words

A byte-level BPE of 16,000 tokens is trained on Python's standard library, whose text is also the
corpus: its lines in a random order, some of them numbers. OUT is written to; nothing is
removed. `--against` takes an interpreter that has `datasets`: its `map` and ours read the same
chats in turn, with as many processes as there are cores, and pack them. `--new-words` puts a number
into each line of them, so that a word in ten is new.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.data.datasets_map import cpu as cpu_seconds
from harness.launching import TINY_LLAMA, job, run
from zerotools.jobs.jobfile_tables.data import DataSpec
from zerotools.jobs.memory_estimates.tokenizer_processes import count_for
from zerotoolsd.trainer.data.corpus import read_pieces
from zerotoolsd.trainer.data.encode_examples import ModelInput, prepare_examples
from zerotoolsd.trainer.data.example_store import Examples
from zerotoolsd.trainer.data.packing import plan_packs
from zerotoolsd.trainer.data.token_cache import DIRECTORY, MOST_BYTES
from zerotoolsd.trainer.data.tokenize_text import load_tokenizer, tokenize

VOCABULARY = 16000
TEMPLATE = (
    "{% for turn in messages %}<|{{ turn.role }}|>{{ turn.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--restart", type=int, default=0, help="megabytes of a job that restarts")
    parser.add_argument("--against", help="an interpreter with datasets")
    parser.add_argument("--new-words", action="store_true", help="a number in each line")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    if options.read:
        read_and_pack(options.read, out)
        return
    print(f"cores: {len(os.sched_getaffinity(0))}, load before: {os.getloadavg()[0]:.1f}")
    tokenizer = make_tokenizer(out / "tokenizer")
    if options.against:
        name = f"chats-{options.megabytes}{'-new' if options.new_words else ''}.jsonl"
        if not (out / name).exists():
            write_chats(out / name, options.megabytes * 10**6, new_words=options.new_words)
        against(out / name, options.against, options.rounds)
        return
    for name, write, read in (
        ("plain text", write_text, read_text),
        ("documents in JSONL", write_documents, read_text),
        ("chats in JSONL, all answers", write_chats, read_chats),
    ):
        path = out / f"{write.__name__}.jsonl" if write is not write_text else out / "text.txt"
        size = write(path, options.megabytes * 10**6)
        began, used = time.monotonic(), time.process_time()
        read(path, tokenizer, out / "ids")
        seconds, cpu = time.monotonic() - began, time.process_time() - used
        print(f"{name}: {size / seconds / 1e6:.2f} MB/s, {size / cpu / 1e6:.2f} MB per cpu second")
    if options.restart:
        restart(out, options.restart)


def against(chats: Path, python: str, rounds: int) -> None:
    """Print what `datasets.map` and this trainer take for the same chats, in turn."""
    out = chats.parent
    size, cores = chats.stat().st_size / 1e6, len(os.sched_getaffinity(0))
    theirs = [python, str(Path(__file__).with_name("datasets_map.py")), str(out / "tokenizer")]
    ours = [sys.executable, "-m", __spec__.name, str(out), "--read", str(chats)]
    for number in range(rounds):
        for name, command in (
            ("datasets.map", [*theirs, str(chats), str(cores)]),
            ("zerotools", ours),
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds, cpu = json.loads(done.stdout.splitlines()[-1])
            print(
                f"round {number + 1}, {name}: {seconds:.1f} s, {cpu:.1f} processor s of {size:.0f} "
                f"MB: {size / seconds:.2f} MB/s, {size / cpu:.2f} MB per processor s; load "
                f"{os.getloadavg()[0]:.1f}",
                flush=True,
            )


def read_and_pack(chats: Path, out: Path) -> None:
    """Print the seconds and processor seconds that reading and packing take, as JSON."""
    tokenizer = load_tokenizer(out / "tokenizer")
    reader = ModelInput(encoder_decoder=False, positions=4096)
    data = DataSpec(examples=(str(chats),))
    began, used = time.monotonic(), cpu_seconds()
    processes = count_for(chats.stat().st_size)
    ids = out / "ids"
    prepare_examples([chats], tokenizer, data, reader, ids, processes=processes)
    plan_packs(Examples(ids, encoder_decoder=False), 4096, 1, out / "packs")
    print(json.dumps([time.monotonic() - began, cpu_seconds() - used]))


def restart(out: Path, megabytes: int) -> None:
    text = out / "large.txt"
    if not text.exists():
        write_text(text, megabytes * 10**6)
    cache = {DIRECTORY: str((out / "cache").absolute()), MOST_BYTES: str(1 << 40)}
    tree = job(
        text,
        model={"config": {**TINY_LLAMA, "vocab_size": VOCABULARY}},
        data={"tokenizer": str((out / "tokenizer").absolute())},
        train={"steps": 2},
    )
    for name in ("first", "restarted"):
        directory = out / f"{name}-{time.time_ns()}"
        began = time.monotonic()
        attempt = run_with(directory, {**tree, "env": cache})
        [ready] = [line for line in attempt.log().splitlines() if line.startswith("ready in")]
        print(f"{megabytes} MB, {name}: {ready}; the process {time.monotonic() - began:.1f} s")


def run_with(directory: Path, tree: dict[str, Any]) -> Any:
    os.environ.setdefault("ZEROTOOLS_TEST_PATIENCE", "20")
    return run(directory, tree)


def make_tokenizer(directory: Path) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if not directory.exists():
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator(lines(4_000_000), trainer)
        made = PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
        )
        made.save_pretrained(directory)
    return load_tokenizer(directory)


def lines(size: int) -> Iterator[str]:
    """Lines of the standard library in a random order, `size` bytes of them, every twentieth with a
    number, so that no text comes twice."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("**/*.py"))
    text = [
        line
        for path in sources
        if "site-packages" not in path.parts and "test" not in path.parts
        for line in path.read_text("utf-8", "ignore").splitlines()
        if line
    ]
    chosen = random.Random(1)
    written = number = 0
    while written < size:
        line = f"{chosen.choice(text)}\n" if number % 20 else f"{number}\n"
        number += 1
        written += len(line.encode())
        yield line


def write_text(path: Path, size: int) -> int:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(lines(size))
    return path.stat().st_size


def grouped(size: int, count: int, *, new_words: bool = False) -> Iterator[list[str]]:
    group: list[str] = []
    chosen = random.Random(2)
    for line in lines(size):
        group.append(f"{line[:-1]} {chosen.randrange(10**9)}\n" if new_words else line)
        if len(group) == count:
            yield group
            group = []


def write_documents(path: Path, size: int) -> int:
    with path.open("w", encoding="utf-8") as file:
        for group in grouped(size, 50):
            file.write(json.dumps({"text": "".join(group)}) + "\n")
    return path.stat().st_size


def write_chats(path: Path, size: int, *, new_words: bool = False) -> int:
    with path.open("w", encoding="utf-8") as file:
        for group in grouped(size, 24, new_words=new_words):
            turns = [
                {"role": ("user", "assistant")[turn % 2], "content": "".join(group[turn * 6 :][:6])}
                for turn in range(4)
            ]
            file.write(json.dumps({"messages": turns}) + "\n")
    return path.stat().st_size


def read_text(path: Path, tokenizer: Any, ids: Path) -> None:
    tokenize(read_pieces(path, DataSpec()), tokenizer, ids)


def read_chats(path: Path, tokenizer: Any, ids: Path) -> None:
    reader = ModelInput(encoder_decoder=False, positions=4096)
    prepare_examples([path], tokenizer, DataSpec(examples=(str(path),)), reader, ids)


if __name__ == "__main__":
    main()
