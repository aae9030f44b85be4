"""The command that starts a training program, as people paste it or keep it in a script.

    CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 2 main.py --deepspeed ds.json --learning_rate 1e-4
    settings                 launcher  its options  program  arguments of the program

Only the arguments of the program are Hugging Face's, if its program is one of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.reading.report import Findings, KeyOutcome, ReportRow
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.imports.recipes.accelerate_flags import flags_document
from zerotools.jobs.imports.recipes.launcher_numa import AFFINITY, numa_of
from zerotools.jobs.imports.recipes.launcher_ranks import ranks_of
from zerotools.jobs.imports.recipes.recipe import Recipe
from zerotools.jobs.imports.recipes.shell_words import REST, Command, Word, commands_of
from zerotools.jobs.launcher_keys.launch_flags import (
    MODULES,
    RUNNERS,
    SHORT,
    WORDS_AFTER,
    WRAPPERS,
)
from zerotools.jobs.launcher_keys.trainer_keys import TRAINER_DEFAULTS, TRAINERS_OWN

_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
_NUMBER = re.compile(r"-[\d.]")
_OWN_YAML = {"llamafactory-cli": "--llamafactory", "axolotl": "--axolotl"}
_MODULES_YAML = {"axolotl.cli.train": "--axolotl", "llamafactory.cli": "--llamafactory"}
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Launch:
    """A launch line in its parts."""

    launcher: str
    options: dict[str, ConfigValue]
    program: Word
    arguments: Sequence[Word]
    settings: dict[str, Word]


def read_launch(text: str, source: str, beside: Path, *, lines: bool) -> Recipe:
    """What the launch line in `text` says. `lines` puts the numbers of lines into places.

    Raises:
        BadRequest: there is no launch line or several, or a word of it cannot be known.
    """
    places = _Places(source, lines)
    commands = list(commands_of(text, source))
    command = _the_one(commands, places)
    findings = Findings()
    launch = _split(_started(command.words), _exported(commands, command), places, findings)
    given = dict(_arguments(launch, places, findings))
    is_trainer = "deepspeed_config" not in given and not TRAINERS_OWN.isdisjoint(given)
    named = given.pop("deepspeed_config", None) or given.pop("deepspeed", None)
    given.pop("deepspeed", None)
    if named is not None and named.value is True:
        named = None  # `--deepspeed` alone switches it on in programs of their own
    file, document = flags_document(launch.launcher, launch.options, source, findings)
    visible = _setting(VISIBLE, launch, places)
    ranks, every = ranks_of(launch.launcher, launch.options, visible, findings)
    _report_settings(launch, places, findings)
    return Recipe(
        source,
        given,
        beside,
        TRAINER_DEFAULTS if is_trainer else {},
        "Hugging Face's Trainer",
        deepspeed=named,
        accelerate=document,
        accelerate_file=file,
        ranks=ranks,
        launcher=launch.launcher if every else "",
        numa=numa_of(launch.launcher, launch.options, _setting(AFFINITY, launch, places), findings),
        findings=findings,
    )


@dataclass(frozen=True)
class _Places:
    source: str
    lines: bool

    def of(self, line: int) -> str:
        return f"{self.source}:{line}" if self.lines else self.source


def _the_one(commands: Sequence[Command], places: _Places) -> Command:
    launches = [found for found in commands if _kind(found.words)]
    wide = [found for found in launches if _kind(found.words) != "python"]
    chosen = wide or launches
    if not chosen:
        raise BadRequest(
            f"{places.source}: has no launch line, a command that begins with deepspeed, torchrun, "
            "accelerate launch or python and names a program"
        )
    if len(chosen) > 1:
        listed = ", ".join(str(found.words[0].line) for found in chosen)
        raise BadRequest(
            f"{places.source}: has {len(chosen)} launch lines (lines {listed}); give the one that "
            "is meant with --launch"
        )
    after = commands[commands.index(chosen[0]) + 1 :]
    if after and after[0].cut is not None and after[0].words[:1]:
        first = after[0].words[0]
        if first.text.startswith("-"):
            raise BadRequest(
                f"{places.of(first.line)}: {first.text} is no part of the command: the `\\` of "
                f"line {after[0].cut} is followed by a blank or a comment, which ends it there; "
                "let it be the last character of its line"
            )
    return chosen[0]


def _exported(commands: Sequence[Command], until: Command) -> dict[str, Word]:
    """The variables that `until` gets of the commands before it, and its own."""
    found: dict[str, Word] = {}
    for command in commands[: commands.index(until)]:
        if [word.text for word in command.words[:1]] == ["export"]:
            found |= command.settings
    return found | until.settings


def _started(words: Sequence[Word]) -> list[Word]:
    """`words` without what only starts the launcher."""
    rest = list(words)
    while rest:
        name = Path(rest[0].text).name
        if len(rest) > 1 and (name, rest[1].text) in RUNNERS:
            rest = rest[2:]
        elif name in WRAPPERS or (rest[0].text.startswith("-") and len(rest) < len(words)):
            rest = rest[1:]
        elif "=" in name and len(rest) < len(words):
            rest = rest[1:]  # `env NAME=value`
        else:
            break
    return rest


def _kind(words: Sequence[Word]) -> str:
    """The launcher that the command calls; empty: none."""
    rest = _started(words)
    if not rest:
        return ""
    name = Path(rest[0].text).name
    texts = [word.text for word in rest]
    if name in ("deepspeed", "torchrun"):
        return name
    if name == "accelerate":
        return name if texts[1:2] == ["launch"] else ""
    if name in _OWN_YAML:
        return name if texts[1:2] == ["train"] else ""
    if not _PYTHON.fullmatch(name):
        return ""
    if "-m" in texts[1:]:
        module = texts[texts.index("-m") + 1 :][:1]
        if module and module[0] in _MODULES_YAML:
            return "axolotl" if "axolotl" in module[0] else "llamafactory-cli"
        return MODULES.get(module[0], "python") if module and module[0] not in _TOOLS else ""
    return "python" if any(text.endswith(".py") for text in texts[1:]) else ""


_TOOLS = frozenset({"pip", "venv", "http.server", "nltk.downloader"})


def _split(
    words: Sequence[Word], settings: dict[str, Word], places: _Places, findings: Findings
) -> Launch:
    kind = _kind(words)
    texts = [word.text for word in words]
    if kind in _OWN_YAML:
        raise BadRequest(
            f"{places.of(words[0].line)}: {kind} reads its settings from a YAML; give that file "
            f"with {_OWN_YAML[kind]}"
        )
    begin = 1
    if kind == "accelerate" and texts[1:2] == ["launch"]:
        begin = 2
    elif kind != "python" and "-m" in texts and _PYTHON.fullmatch(Path(texts[0]).name):
        begin = texts.index("-m") + 2
    options, program_at = _options(kind, words, begin, places, findings)
    if program_at < len(words):
        _known(words[program_at], kind, places)
    else:
        raise BadRequest(
            f"{places.of(words[0].line)}: {kind} is given no program; is the line cut off?"
        )
    if texts[program_at] in _MODULES_YAML:
        raise BadRequest(
            f"{places.of(words[program_at].line)}: {texts[program_at]} reads its settings from a "
            f"YAML; give that file with {_MODULES_YAML[texts[program_at]]}"
        )
    findings.rows.append(
        ReportRow(
            KeyOutcome.IGNORED,
            "program",
            places.of(words[program_at].line),
            texts[program_at],
            None,
            "zerotools trains the model itself",
        )
    )
    return Launch(kind, options, words[program_at], words[program_at + 1 :], settings)


def _options(
    kind: str, words: Sequence[Word], begin: int, places: _Places, findings: Findings
) -> tuple[dict[str, ConfigValue], int]:
    """The launcher's own options, each once, and where the program stands."""
    options: dict[str, ConfigValue] = {}
    at = begin
    while at < len(words) and words[at].text.startswith("-"):
        word = words[at]
        _known(word, word.text.partition("=")[0], places)
        title, _, written = word.text.partition("=")
        bare = title.lstrip("-").replace("-", "_")
        name = SHORT[kind].get(bare, bare)
        table = WORDS_AFTER[kind]
        takes = table.get(name, 1 if kind == "accelerate" else None)
        if takes is None:  # nobody knows it: a program is no value
            following = words[at + 1].text if at + 1 < len(words) else "-"
            takes = int(not following.startswith("-") and not following.endswith(".py"))
        at += 1
        value: object = written if "=" in word.text else True
        if value is True and takes and at < len(words):
            value = _known(words[at], title, places)
            at += 1
        if not (kind == "python" and name == "m"):
            _note_again(options.get(name), title, findings)
            options[name] = ConfigValue(name, title, places.of(word.line), value)
    return options, at


def _arguments(
    launch: Launch, places: _Places, findings: Findings
) -> Iterator[tuple[str, ConfigValue]]:
    """Each argument of the program once, the last where it stands twice, as argparse has it."""
    seen: dict[str, ConfigValue] = {}
    for title, line, values in _grouped(launch.arguments, places, findings):
        name = title.lstrip("-").replace("-", "_")
        value: object = True if not values else values[0] if len(values) == 1 else values
        _note_again(seen.get(name), title, findings)
        seen[name] = ConfigValue(name, title, places.of(line), value)
    yield from seen.items()


def _note_again(old: ConfigValue | None, title: str, findings: Findings) -> None:
    if old is not None:
        why = f"{title} stands in the line again, and the last counts"
        row = ReportRow(KeyOutcome.IGNORED, old.title, old.place, old.value, None, why)
        findings.rows.append(row)


def _grouped(
    words: Sequence[Word], places: _Places, findings: Findings
) -> Iterator[tuple[str, int, list[str]]]:
    group: tuple[str, int, list[str]] | None = None
    for word in words:
        if word.problem.endswith(REST):
            why = "what a call of the script adds; write it out where it says something"
            row = ReportRow(KeyOutcome.UNKNOWN, word.problem[:2], places.of(word.line), None, None)
            findings.rows.append(replace(row, why=why))
        elif word.text.startswith("-") and not _NUMBER.match(word.text) and len(word.text) > 1:
            if group:
                yield group
            title, equals, written = word.text.partition("=")
            _known(word, title, places)
            group = (title, word.line, [written] if equals else [])
        elif group:
            group[2].append(_known(word, group[0], places))
        else:
            _known(word, "an argument of the program", places)
            why = "an argument of the program without a name"
            place = places.of(word.line)
            findings.rows.append(ReportRow(KeyOutcome.UNKNOWN, word.text, place, None, None, why))
    if group:
        yield group


def _known(word: Word, title: str, places: _Places) -> str:
    if word.problem:
        raise BadRequest(f"{places.of(word.line)}: {title}: {word.problem}")
    return word.text


def _setting(name: str, launch: Launch, places: _Places) -> ConfigValue | None:
    word = launch.settings.get(name)
    if word is None or word.problem:
        return None
    return ConfigValue(name, name, places.of(word.line), word.text)


def _report_settings(launch: Launch, places: _Places, findings: Findings) -> None:
    for name, word in launch.settings.items():
        if name in (VISIBLE, AFFINITY):
            continue  # each has its row
        why = "a variable; write it to [env] of the job file if the ranks need it"
        row = ReportRow(KeyOutcome.IGNORED, name, places.of(word.line), None, None, why)
        findings.rows.append(row)
