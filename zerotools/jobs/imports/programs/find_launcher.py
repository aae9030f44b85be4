"""Find the command that starts a training program, and the commands that wrap it.

    srun -N 1 docker run --gpus all IMAGE bash -c "cd /src && torchrun --nproc_per_node 4 x.py"

For this line, `StartCommand.kind` is `torchrun`, `words` are the words from `torchrun` on, and `by`
are the wrapping words from `srun` to `IMAGE`. `program_of` converts the command to the program of a
job with engine `script`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from zerotools.jobs.imports.programs.run_settings import Program
from zerotools.jobs.imports.programs.shell_parser import REST, Command, Word, commands_of
from zerotools.jobs.launcher_keys.launcher_flags import (
    CONSOLE_MODULES,
    CONSOLE_PROGRAMS,
    CONTAINERS,
    KEYWORDS,
    MEETING,
    MODULES,
    ONE_VARIABLE,
    PROGRAM_MODULES,
    RANKS_BY,
    RUNNERS,
    SHELLS,
    SHORT,
    VARIABLE_OPTIONS,
    VARIABLES_FIRST,
    WORDS_AFTER,
    WRAPPERS,
)

PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
_RUNS_TEXT = re.compile(r"-[a-z]*c")
_NAME = re.compile(r"[A-Za-z_]\w*")
_LISTED = re.compile(r"(?:[^,']|'[^']*')+")
_CONTAINER_NAMES = frozenset(name for name, _ in CONTAINERS)
_WRAP = "--wrap"
_MODULE_LAST = re.compile(r"-[BEIOPSbdiqsuvx]+m")
_TOOLS = frozenset({"pip", "venv", "http.server", "nltk.downloader"})
_DEEPEST = 4
"""The largest depth of nested shells (`bash -c` in `bash -c`) that is read."""


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
"""Options of launchers for GPUs, port and address: the job has its own values for them."""
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


@dataclass(frozen=True)
class StartCommand:
    """A command that starts a training program by a launcher.

    Attributes:
        kind: the launcher, such as torchrun.
        words: the words of the launcher's command.
        by: the words before `words`. They belong to commands that run the launcher, such as `docker
            run`.
    """

    kind: str
    words: Sequence[Word]
    by: Sequence[Word]

    @property
    def starter(self) -> str:
        """The name of the wrapping program, such as `docker run`; the empty string if nothing
        wraps the launcher.
        """
        texts = [word.text for word in self.by]
        pairs = (pair for pair in pairwise(texts) if pair in RUNNERS)  # `sudo docker run`
        return " ".join(next(pairs, texts[:1]))


def commands_within(text: str, source: str, depth: int = 0) -> Iterator[Command]:
    """Yield the commands of a shell script.

    If a command passes a text to a shell (`bash -c`), the commands in this text follow the command.

    Raises:
        BadRequest: a quote is not closed.
    """
    for command in commands_of(text, source):
        yield command
        inner, by = _shell_text(command.words)
        if inner is None or depth == _DEEPEST:
            continue
        for each in commands_within(inner.source, source, depth + 1):
            yield replace(
                each,
                words=[_below(word, inner.line) for word in each.words],
                by=[*command.by, *by, *each.by],
                settings={
                    **command.settings,
                    **{name: _below(word, inner.line) for name, word in each.settings.items()},
                },
            )


def _below(word: Word, line: int) -> Word:
    return replace(word, line=word.line + line - 1)


def _shell_text(words: Sequence[Word]) -> tuple[Word | None, Sequence[Word]]:
    """Return the text that `eval` or `bash -c` runs, and the words before `bash` (such as
    `srun`)."""
    rest = _without_keywords(words)
    if not rest:
        return None, ()
    if rest[0].text == "eval" and len(rest) > 1:
        whole = " ".join(word.source for word in rest[1:])
        return Word(whole, rest[1].line), ()
    if not _starts_others(rest) and Path(rest[0].text).name not in SHELLS:
        return None, ()
    for at, word in enumerate(rest) if Path(rest[0].text).name == "sbatch" else ():
        if word.text.startswith(f"{_WRAP}="):
            text = word.source.removeprefix(f"{_WRAP}=")
            return replace(word, text=text, written=text), rest[:at]
        if word.text == _WRAP and at + 1 < len(rest):
            return rest[at + 1], rest[:at]
    for at, word in enumerate(rest):
        if Path(word.text).name in SHELLS:
            behind = at + 1
            while behind < len(rest) and rest[behind].text.startswith("-"):
                if _RUNS_TEXT.fullmatch(rest[behind].text) and behind + 1 < len(rest):
                    return rest[behind + 1], rest[:at]
                behind += 1
    return None, ()


def launched_command(words: Sequence[Word]) -> StartCommand | None:
    """Return the command in `words` that starts a training program; None if no word is a
    launcher.
    """
    rest = _split_joined_options(_without_keywords(words))
    if not rest:
        return None
    if kind := _kind(rest):
        return StartCommand(kind, rest, ())
    if not _starts_others(rest):
        return None
    found = None
    for at in range(1, len(rest)):
        name = rest[at].text
        if ("/" in name and not name.startswith(("/", "."))) or not (kind := _kind(rest[at:])):
            continue  # an image such as deepspeed/deepspeed is not a program
        found = StartCommand(kind, rest[at:], rest[:at])
        before = rest[at - 1].text
        if not before.startswith("-") or "=" in before:
            break  # else the name may be the value of an option
    return found


def settings_by(by: Sequence[Word]) -> dict[str, Word]:
    """Return the environment variables that the wrapping words `by` set, such as A in `env A=1
    torchrun`.
    """
    found: dict[str, Word] = {}
    runner = option = ""
    for at, word in enumerate(by):
        before, option = option, word.text if re.match("--?[^-]", word.text) else ""
        own = re.match(VARIABLE_OPTIONS.get(runner, "(?!)"), option or before)
        if own and option:
            found |= _variables(word, len(own[0]), runner)
        elif option or (at and (Path(by[at - 1].text).name, word.text) in RUNNERS):
            continue
        elif own and own[0] == before:  # the value of the option
            found |= _variables(word, 0, runner)
        elif _starts_others(by[at:]) and not (before and runner in _CONTAINER_NAMES):
            runner = Path(word.text).name
        elif runner in VARIABLES_FIRST:
            variables = _variables(word, 0, runner)
            found |= variables
            runner = runner if variables or before else ""  # the wrapped command begins
    return found


def _variables(word: Word, begin: int, runner: str) -> dict[str, Word]:
    """Return the variables in `word`, from character `begin` on, that are options of the command
    `runner`."""
    text = word.source[begin:]
    is_list = runner in VARIABLE_OPTIONS and runner not in ONE_VARIABLE
    found = {}
    for part in _LISTED.findall(text) if is_list else [text]:
        name, equals, value = part.partition("=")
        if equals and _NAME.fullmatch(name):
            value = value.strip("'") if is_list else value
            problem = "" if is_list and not re.search(r"[$`]", value) else word.problem
            found[name] = Word(value, word.line, problem, value)
    return found


def script_of(words: Sequence[Word]) -> Word | None:
    """Return the shell script file that the command runs; None if it does not run a script."""
    rest = _without_keywords(words)
    at = next((i for i, word in enumerate(rest) if Path(word.text).name in SHELLS), None)
    if rest and at is not None and (at == 0 or _starts_others(rest)):
        rest = rest[at + 1 :]
    elif rest and Path(rest[0].text).name == "sbatch":
        rest = [word for word in rest if word.text.endswith(".sh")]
    if rest[:1] and rest[0].text in ("source", "."):
        rest = rest[1:]
    return rest[0] if rest and rest[0].text.endswith(".sh") else None


def _without_keywords(words: Sequence[Word]) -> list[Word]:
    rest = list(words)
    while rest and rest[0].text in KEYWORDS:
        rest = rest[1:]
    return rest


def _split_joined_options(words: Sequence[Word]) -> list[Word]:
    """Return `words` with python's joined options (`-um`) separated (`-u -m`)."""
    found: list[Word] = []
    for word in words:
        if _MODULE_LAST.fullmatch(word.text) and any(
            PYTHON.fullmatch(Path(each.text).name) for each in found
        ):
            found += [Word(word.text[:-1], word.line), Word("-m", word.line)]
        else:
            found.append(word)
    return found


def split_option(kind: str, text: str) -> tuple[str, str, str | None]:
    """Split `text`, an option of the launcher `kind`. Return the option as it is written, its long
    name without dashes, and its value (None if `text` has no value)."""
    title, equals, value = text.partition("=")
    bare = title.lstrip("-").replace("-", "_")
    first = SHORT[kind].get(bare[:1], bare[:1])
    is_joined = not title.startswith("--") and len(bare) > 1 and bare not in WORDS_AFTER[kind]
    if is_joined and WORDS_AFTER[kind].get(first) == 1:
        return text[:2], first, text[2:].removeprefix("=")
    return title, SHORT[kind].get(bare, bare), value if equals else None


def _starts_others(words: Sequence[Word]) -> bool:
    name = Path(words[0].text).name
    return name in WRAPPERS or (len(words) > 1 and (name, words[1].text) in RUNNERS)


def _kind(words: Sequence[Word]) -> str:
    """Return the launcher with which `words` begin, or the empty string if they begin with
    another program.
    """
    name = Path(words[0].text).name
    texts = [word.text for word in words]
    if name in ("deepspeed", "torchrun"):
        return name
    if name == "accelerate":
        return name if texts[1:2] == ["launch"] else ""
    if name in CONSOLE_PROGRAMS:
        return name if texts[1:2] and texts[1] in CONSOLE_PROGRAMS[name] else ""
    if not PYTHON.fullmatch(name):
        return ""
    if "-m" in texts[1:]:
        module = texts[texts.index("-m") + 1 :][:1]
        if module and module[0] in PROGRAM_MODULES:
            return "python"
        return MODULES.get(module[0], "python") if module and module[0] not in _TOOLS else ""
    return "python" if any(text.endswith(".py") for text in texts[1:]) else ""


def program_of(
    start: StartCommand, program: Word, settings: Mapping[str, Word], source: str
) -> Program:
    """Return the training program and the launcher of its ranks, for a job of engine `script`.

    `program` is the word of `start` that names the program. `settings` are the environment
    variables of the command. `source` is the file that contains the command; it is empty for a
    command line.
    """
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
            unknown.append(f"{place}{program.text} is only a placeholder; write the program there")
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
    """Return the launcher's options, and whether the launcher starts a Python module.

    Options that the job sets itself are left out. `until` is the index of the program's word.
    """
    kept: list[str] = []
    is_module = False
    at, end = _first_option(start), until
    while at < end:
        word = start.words[at]
        _, name, value = split_option(start.kind, word.text)
        takes = WORDS_AFTER[start.kind].get(name, 1 if start.kind == "accelerate" else 0)
        width = 1 + (takes if value is None else 0)
        if not word.text.startswith("-"):
            width = 1  # the value of an unknown option
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
