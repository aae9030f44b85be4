"""The program of a launch line as a job of the engine `script` starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from zerotools.jobs.imports.recipes.launch_commands import PYTHON, StartCommand
from zerotools.jobs.imports.recipes.recipe import Program
from zerotools.jobs.imports.recipes.shell_words import REST, Word
from zerotools.jobs.launcher_keys.launch_flags import (
    CONSOLE_MODULES,
    MEETING,
    MODULES,
    RANKS_BY,
    SHORT,
    WORDS_AFTER,
)

_NO_NAME = "the program"
_MODULE = frozenset(("module", "m"))
_GIVEN_BY_THE_JOB = MEETING | frozenset(
    (
        "exclude",
        "gpu_ids",
        "include",
        "multi_gpu",
        "nnodes",
        "node_rank",
        "nproc_per_node",
        "num_accelerators",
        "num_gpus",
        "num_machines",
        "num_nodes",
        "num_processes",
        "standalone",
        "use_env",
    )
)
"""Options of launchers that a job replaces: GPUs, port and address."""
_OWN_VARIABLES = frozenset(
    (
        "CUDA_VISIBLE_DEVICES",
        "FORCE_TORCHRUN",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NNODES",
        "NODE_RANK",
        "RANK",
        "WORLD_SIZE",
        RANKS_BY,
    )
)


def program_of(
    start: StartCommand, program: Word, settings: Mapping[str, Word], source: str
) -> Program:
    """Return the program that begins with the word `program`, with the starter of its ranks.
    `source` is the file of the words' lines; empty if they are not from a file."""
    unknown: list[str] = []
    if start.kind in CONSOLE_MODULES:
        launcher, options, words = _of_console(start)
        name = f"{start.kind} {start.words[1].text}"
    else:
        at = next(i for i, word in enumerate(start.words) if word is program)
        options, is_module = _options(start, at)
        tail = [word for word in start.words[at:] if not word.problem.endswith(REST)]
        words = [*([Word("-m", program.line)] if is_module else []), *tail]
        launcher = "plain" if start.kind == "python" else start.kind
        if launcher == "plain" and options:
            words = [Word(text, program.line) for text in ("python", *options)] + words
            options = []
        name = Path(program.text).name if program.text and not program.problem else _NO_NAME
        if not any(map(str.isalnum, program.text)) and not program.problem:
            name = _NO_NAME
            place = f"{source}:{program.line}: " if source else ""
            unknown.append(f"{place}{program.text} stands for the program; write it")
    for word in words:
        if word.problem:
            place = f"{source}:{word.line}: " if source else ""
            unknown.append(f"{place}{word.source}: {word.problem}")
    env = {
        title: value.text
        for title, value in settings.items()
        if title not in _OWN_VARIABLES and not value.problem
    }
    return Program(
        name,
        f"{source}:{program.line}" if source else "the launch line",
        tuple(word.text for word in words),
        launcher,
        tuple(options),
        env,
        tuple(unknown),
    )


def _of_console(start: StartCommand) -> tuple[str, list[str], list[Word]]:
    launcher, module = CONSOLE_MODULES[start.kind]
    method, line = start.words[1].text, start.words[1].line
    if start.kind == "swift" and method in ("rlhf", "dpo"):
        module = "swift.cli.rlhf"
    words = [Word("-m", line), Word(module, line), *start.words[2:]]
    if start.kind == "litgpt":
        words = [Word("litgpt", line), *start.words[1:]]
    if start.kind == "swift" and method == "dpo":
        words += [Word("--rlhf_type", line), Word("dpo", line)]
    if start.kind == "xtuner":
        words += [Word("--launcher", line), Word("pytorch", line)]
    return launcher, [], words


def _options(start: StartCommand, until: int) -> tuple[list[str], bool]:
    """Return the launcher's options without those that the job gives, and whether it starts a
    module."""
    kept: list[str] = []
    is_module = False
    at, end = _first_option(start), until
    while at < end:
        word = start.words[at]
        title, equals, _ = word.text.partition("=")
        bare = title.lstrip("-").replace("-", "_")
        name = SHORT.get(start.kind, {}).get(bare, bare)
        takes = WORDS_AFTER[start.kind].get(name, 1 if start.kind == "accelerate" else 0)
        width = 1 + (0 if equals else takes)
        if not word.text.startswith("-"):
            width = 1  # of an unknown option
            kept.append(word.text)
        elif name in _MODULE:
            is_module = True
        elif name not in _GIVEN_BY_THE_JOB:
            kept += [each.text for each in start.words[at : min(at + width, end)]]
        at += width
    return kept, is_module


def _first_option(start: StartCommand) -> int:
    texts: Sequence[str] = [word.text for word in start.words]
    if start.kind == "accelerate" and texts[1:2] == ["launch"]:
        return 2
    if start.kind != "python" and PYTHON.fullmatch(Path(texts[0]).name):
        found = next(i for i, text in enumerate(texts) if text in MODULES)
        return found + 1
    return 1
