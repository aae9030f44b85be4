"""The command that starts a training program, as people paste it or keep it in a script.

    CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 2 main.py --deepspeed ds.json --learning_rate 1e-4
    settings                 launcher  its options  program  arguments of the program

Only the arguments of the program are Hugging Face's, if its program is one of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
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
    MEETING,
    MODULES,
    RUNNERS,
    SHORT,
    WORDS_AFTER,
    WRAPPERS,
)
from zerotools.jobs.launcher_keys.trainer_keys import IGNORED, TRAINER_DEFAULTS, TRAINERS_OWN
from zerotools.jobs.text.shell_mend import mend_shell

_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
_NUMBER = re.compile(r"-[\d.]")
_OWN_YAML = {"llamafactory-cli": "--llamafactory", "axolotl": "--axolotl"}
_MODULES_YAML = {"axolotl.cli.train": "--axolotl", "llamafactory.cli": "--llamafactory"}
VISIBLE = "CUDA_VISIBLE_DEVICES"
_UNNEEDED = frozenset((*IGNORED, "output_dir"))
"""Arguments whose values a job does without: its directory is by default the daemon's choice."""
_SHOWN = 40
"""Letters of a comment that a message repeats."""
_MEND = "repair it with --lenient"


@dataclass(frozen=True)
class Launch:
    """A launch line in its parts."""

    launcher: str
    options: dict[str, ConfigValue]
    program: Word
    arguments: Sequence[Word]
    settings: dict[str, Word]


def read_launch(
    text: str, source: str, beside: Path, *, lines: bool, lenient: bool = False
) -> Recipe:
    """What the launch line in `text` says. `lines` puts the numbers of lines into places. With
    `lenient` the text is mended.

    Raises:
        BadRequest: there is no launch line or several, or values that the job needs cannot be
            known: all of them are named.
    """
    findings = Findings()
    if lenient:
        mends = mend_shell(text)
        text = mends.text
        findings.accepted += mends.lines_of(source)
        if mends.notes:
            findings.mended[source] = text
    places = _Places(source, lines, text.split("\n"))
    commands = list(commands_of(text, source))
    command = _the_one(commands, places)
    launch = _split(_started(command.words), _exported(commands, command), places, findings)
    given = dict(_arguments(launch, places, findings))
    places.refuse_unknown()
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
        documents={name: made for each in commands for name, made in each.documents.items()},
        findings=findings,
    )


@dataclass(frozen=True)
class _Places:
    """Names places of a script, and remembers what is not known there."""

    source: str
    lines: bool
    text: Sequence[str]
    unknown: list[str] = field(default_factory=list)

    def of(self, line: int) -> str:
        return f"{self.source}:{line}" if self.lines else self.source

    def swallowed(self, line: int) -> str:
        """What became of the rest of a command that ends in `line`, where a comment does."""
        found = re.search(r"[ \t](#.*)", self.text[line - 1] if line <= len(self.text) else "")
        if found is None:
            return "is the line cut off?"
        comment = found[1] if len(found[1]) <= _SHOWN else f"{found[1][:_SHOWN]}..."
        return (
            f"the comment {comment} has swallowed the rest of line {line}; move it to a line of "
            f"its own above the command, or {_MEND}"
        )

    def refuse_unknown(self) -> None:
        """Raises BadRequest: there are values that only a shell could know, and that are needed."""
        if len(self.unknown) == 1:
            raise BadRequest(self.unknown[0])
        if self.unknown:
            listed = "".join(f"\n  {each}" for each in self.unknown)
            raise BadRequest(f"{len(self.unknown)} values are not known:{listed}")


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
                f"{places.of(first.line)}: {first.text} is not part of the command: the `\\` "
                f"of line {after[0].cut} is followed by a blank or a comment, so the command ends "
                f"there; make the `\\` the last character of its line, or {_MEND}"
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
    while program_at + 1 < len(words) and words[program_at].problem:
        if words[program_at + 1].text.startswith("-"):
            break  # it is the program, which nothing here depends on
        _is_known(words[program_at], kind, False, places, findings)
        program_at += 1
    if program_at >= len(words):
        line = words[-1].line
        why = places.swallowed(line)
        raise BadRequest(f"{places.of(line)}: {kind} is given no program; {why}")
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
            texts[program_at] or None,
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
        known = _is_known(word, title, name in MEETING, places, findings)
        if value is True and takes and at < len(words):
            value = words[at].text
            known = _is_known(words[at], title, name in MEETING, places, findings)
            at += 1
        if known and not (kind == "python" and name == "m"):
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
    named: str | None = None
    for word in words:
        if word.problem.endswith(REST):
            why = "what a call of the script adds; write it out where it says something"
            row = ReportRow(KeyOutcome.UNKNOWN, word.problem[:2], places.of(word.line), None, None)
            findings.rows.append(replace(row, why=why))
        elif word.text.startswith("-") and not _NUMBER.match(word.text) and len(word.text) > 1:
            if group:
                yield group
            title, equals, written = word.text.partition("=")
            is_free = title.lstrip("-").replace("-", "_") in _UNNEEDED
            known = _is_known(word, title, is_free, places, findings)
            group = (title, word.line, [written] if equals else []) if known else None
            named = title
        elif word.problem and named is not None:
            is_free = named.lstrip("-").replace("-", "_") in _UNNEEDED
            _is_known(word, named, is_free, places, findings)
            group = None
        elif group:
            group[2].append(word.text)
        elif named is None:
            if not _is_known(word, "an argument of the program", False, places, findings):
                continue
            why = "an argument of the program without a name"
            place = places.of(word.line)
            findings.rows.append(ReportRow(KeyOutcome.UNKNOWN, word.text, place, None, None, why))
    if group:
        yield group


def _is_known(word: Word, title: str, is_free: bool, places: _Places, findings: Findings) -> bool:
    """Whether the text of `word` is known; else it is left out, and said. `is_free` says that no
    key of the job depends on it; any other is refused later."""
    if not word.problem:
        return True
    place = places.of(word.line)
    if is_free:
        why = f"{word.problem.partition(';')[0]}; nothing here needs it"
        findings.rows.append(ReportRow(KeyOutcome.IGNORED, title, place, None, None, why))
    else:
        places.unknown.append(f"{place}: {title}: {word.problem}")
    return False


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
