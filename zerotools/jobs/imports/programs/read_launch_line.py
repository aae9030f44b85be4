"""Read the command that starts a training program, as people copy it from a page or keep it in a
script.

    CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 2 main.py --deepspeed ds.json --learning_rate 1e-4
    settings                 launcher  its options  program  arguments of the program

If the program uses a Trainer, its arguments are read as arguments of the Trainer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.programs.convert_program_arguments import to_trainer_arguments
from zerotools.jobs.imports.programs.find_launcher import (
    PYTHON,
    StartCommand,
    commands_within,
    launched_command,
    program_of,
    script_of,
    settings_by,
    split_option,
)
from zerotools.jobs.imports.programs.launcher_options import (
    AFFINITY,
    console_ranks,
    flags_document,
    numa_of,
    ranks_of,
)
from zerotools.jobs.imports.programs.run_settings import RunSettings
from zerotools.jobs.imports.programs.shell_parser import REST, Command, Word
from zerotools.jobs.imports.programs.trainer_based_programs import as_accelerate
from zerotools.jobs.imports.reading.check_deepspeed_keys import ConfigValue
from zerotools.jobs.imports.reading.import_report import Findings, KeyOutcome, ReportRow, by_kind
from zerotools.jobs.launcher_keys.launcher_flags import (
    CONSOLE_PROGRAMS,
    MEETING,
    RANKS_BY,
    STARTED_BY,
    WORDS_AFTER,
)
from zerotools.jobs.launcher_keys.trainer_keys import IGNORED, TRAINER_DEFAULTS, TRAINERS_OWN
from zerotools.jobs.text.mend_pasted_shell import as_typed, mend_shell

_NUMBER = re.compile(r"-[\d.]")
VISIBLE = "CUDA_VISIBLE_DEVICES"
_UNNEEDED = frozenset((*IGNORED, "output_dir", "seed"))
"""Arguments that a job does not need: the daemon chooses an output directory, and any seed is
valid."""
_SHOWN = 40
"""The largest number of characters of a command in a message."""


@dataclass(frozen=True)
class Launch:
    """The parts of a launch line."""

    launcher: str
    options: dict[str, ConfigValue]
    program: Word
    arguments: Sequence[Word]
    settings: dict[str, Word]


def read_launch(
    text: str,
    source: str,
    file_directory: Path,
    *,
    lines: bool,
    lenient: bool = False,
    number: int | None = None,
) -> RunSettings:
    """Return the training arguments in a launch line.

    `text` is the line itself, or a script that contains it.

    If `lines` is true, positions in messages have line numbers. If `lenient` is true, typical
    copying errors in the text are corrected first. `number`, from 1, selects one of several launch
    lines. If only a shell can compute a required value, the findings contain an error.

    Raises:
        BadRequest: the script has no launch line, or it has several and `number` is not set.
    """
    findings = Findings()
    if lenient:
        mends = mend_shell(text)
        text = mends.text
        findings.repairs += mends.lines_of(source)
        if mends.notes:
            findings.repaired[source] = text
    places = _Places(source, lines)
    if not lenient:
        _check_as_typed(text, places)
    commands = list(commands_within(text, source))
    command, start = _the_one(commands, places, number)
    settings = {**_exported(commands, command), **settings_by(start.by)}
    start = as_accelerate(start)
    launch = _split(start, settings, places, findings)
    loose: list[ConfigValue] = []
    given = dict(_arguments(launch, places, findings, loose))
    findings.wrong += places.unknown
    names = {
        _name_of(word.text.partition("=")[0]) for word in launch.arguments
    }  # unknown ones, too
    is_trainer = "deepspeed_config" not in names and not TRAINERS_OWN.isdisjoint(names)
    named = given.pop("deepspeed_config", None) or given.pop("deepspeed", None)
    given.pop("deepspeed", None)
    if named is not None and named.value is True:
        named = None  # in some programs a switch, without a file name
    file, document = flags_document(launch.launcher, launch.options, source, findings)
    visible = _setting(VISIBLE, launch, places)
    if launch.launcher in CONSOLE_PROGRAMS:
        count = _setting(RANKS_BY, launch, places)
        ranks, every = console_ranks(launch.launcher, count, visible, findings)
    else:
        ranks, every = ranks_of(launch.launcher, launch.options, visible, findings)
    _report_start(start, places, findings)
    _report_settings(launch, places, findings)
    run = RunSettings(
        source,
        given,
        file_directory,
        TRAINER_DEFAULTS if is_trainer else {},
        "Hugging Face's Trainer",
        deepspeed=named,
        accelerate=document,
        accelerate_file=file,
        ranks=ranks,
        launcher=launch.launcher if every else "",
        numa=numa_of(launch.launcher, launch.options, _setting(AFFINITY, launch, places), findings),
        documents={name: made for each in commands for name, made in each.documents.items()},
        program=program_of(start, launch.program, settings, source if lines else ""),
        findings=findings,
    )
    return to_trainer_arguments(run, launch.launcher, launch.program.text, loose, lenient=lenient)


@dataclass(frozen=True)
class _Places:
    """Formats positions in a script for messages.

    `unknown` collects messages about words that only a shell can compute.
    """

    source: str
    lines: bool
    unknown: list[str] = field(default_factory=list)

    def of(self, line: int) -> str:
        return f"{self.source}:{line}" if self.lines else self.source


def _check_as_typed(text: str, places: _Places) -> None:
    r"""Raise an error if a web page has changed the launch line, for example if there is a comment
    after a `\`.

    Raises:
        BadRequest: the corrected text has other words. The message lists every correction.
    """
    mends = mend_shell(text)
    if not mends.notes:
        return
    try:
        typed = [start.words for _, start in _launches(commands_within(mends.text, places.source))]
        found = [
            [as_typed(word.source) for word in start.words]
            for _, start in _launches(commands_within(text, places.source))
        ]
    except BadRequest:
        return  # a quote is not closed: the caller reports it
    for words in typed:
        meant = [as_typed(word.source) for word in words]
        if meant not in found:
            differs = (
                word
                for at, word in enumerate(words, 1)
                if all(each[:at] != meant[:at] for each in found)
            )
            first = next(differs, words[-1])
            raise BadRequest(
                f"{places.of(first.line)}: from {first.source} on, a shell would misread this "
                f"command: {by_kind(mends.notes)}; repair it with --lenient"
            )


def _launches(commands: Iterable[Command]) -> list[tuple[Command, StartCommand]]:
    """Return the commands that start a training program.

    Commands that start `python` are returned only if no command uses another launcher.
    """
    launches = [
        (each, replace(found, by=[*each.by, *found.by]))
        for each in commands
        if (found := launched_command(each.words)) is not None
    ]
    wide = [(each, found) for each, found in launches if found.kind != "python"]
    return wide or launches


def _the_one(
    commands: Sequence[Command], places: _Places, number: int | None
) -> tuple[Command, StartCommand]:
    chosen = _launches(commands)
    if not chosen:
        raise BadRequest(f"{places.source}: has no launch line{_instead(commands)}")
    if number is not None and not 1 <= number <= len(chosen):
        has = "one launch line" if len(chosen) == 1 else f"{len(chosen)} launch lines"
        raise BadRequest(f"--block {number}: {places.source} has {has}; correct the number")
    if len(chosen) > 1 and number is None:
        listed = "".join(
            f"\n  {at}  line {found.words[0].line}: {_beginning(found)}"
            for at, (_, found) in enumerate(chosen, 1)
        )
        raise BadRequest(
            f"{places.source}: has {len(chosen)} launch lines; choose one of them with --block N:"
            f"{listed}"
        )
    return chosen[(number or 1) - 1]


def _beginning(start: StartCommand) -> str:
    text = " ".join(word.source for word in start.words)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _instead(commands: Sequence[Command]) -> str:
    """Return advice for a script without a launch line, as the end of an error message."""
    other = next((found for each in commands if (found := script_of(each.words))), None)
    if other is not None:
        return f": line {other.line} runs {other.source}; give that script with --launch"
    return (
        " (a command that begins with deepspeed, torchrun, accelerate launch or python, and names "
        'a program); run any other program as a job with engine = "script"'
    )


def _exported(commands: Sequence[Command], until: Command) -> dict[str, Word]:
    """Return the environment variables of the command `until`: the variables that are set in front
    of it, and the variables that earlier commands export.
    """
    found: dict[str, Word] = {}
    for command in commands[: commands.index(until)]:
        if [word.text for word in command.words[:1]] == ["export"]:
            found |= command.settings
    return found | until.settings


def _split(
    start: StartCommand, settings: dict[str, Word], places: _Places, findings: Findings
) -> Launch:
    kind, words = start.kind, start.words
    texts = [word.text for word in words]
    if kind in CONSOLE_PROGRAMS:
        _report_program(f"{kind} {texts[1]}", words[0], places, findings)
        return Launch(kind, {}, words[1], words[2:], settings)
    begin = 1
    if kind == "accelerate" and texts[1:2] == ["launch"]:
        begin = 2
    elif kind != "python" and "-m" in texts and PYTHON.fullmatch(Path(texts[0]).name):
        begin = texts.index("-m") + 2
    options, program_at = _options(kind, words, begin, places, findings)
    while program_at + 1 < len(words) and words[program_at].problem:
        if words[program_at + 1].text.startswith("-"):
            break  # the word is the program; its name is not needed
        _is_known(words[program_at], kind, False, places, findings)
        program_at += 1
    if program_at >= len(words):
        line = words[-1].line
        raise BadRequest(f"{places.of(line)}: no program follows {kind}; is the line cut off?")
    program = words[program_at]
    _report_program(program.text, program, places, findings)
    return Launch(kind, options, program, words[program_at + 1 :], settings)


def _report_program(name: str, word: Word, places: _Places, findings: Findings) -> None:
    why = "zerotools trains the model itself; --as script runs the program"
    row = ReportRow(KeyOutcome.IGNORED, "program", places.of(word.line), name or None, None, why)
    findings.rows.append(row)


def _options(
    kind: str, words: Sequence[Word], begin: int, places: _Places, findings: Findings
) -> tuple[dict[str, ConfigValue], int]:
    """Return the launcher's options keyed by name, and the index of the word that names the
    program.
    """
    options: dict[str, ConfigValue] = {}
    at = begin
    while at < len(words) and words[at].text.startswith("-"):
        word = words[at]
        title, name, written = split_option(kind, word.text)
        if not word.problem and word.written not in ("", word.text):
            title = word.written  # an option of TRL that was replaced
        table = WORDS_AFTER[kind]
        takes = table.get(name, 1 if kind == "accelerate" else None)
        if takes is None:  # unknown option: its value is not a program
            following = words[at + 1].text if at + 1 < len(words) else "-"
            takes = int(not following.startswith("-") and not following.endswith(".py"))
        at += 1
        value: object = True if written is None else written
        known = _is_known(word, title, name in MEETING, places, findings)
        if value is True and takes and at < len(words):
            value = words[at].text
            known = _is_known(words[at], title, name in MEETING, places, findings)
            at += 1
        if known and not (kind == "python" and name == "m"):
            _report_repeated(options.get(name), title, findings)
            options[name] = ConfigValue(name, title, places.of(word.line), value)
    return options, at


def _arguments(
    launch: Launch, places: _Places, findings: Findings, loose: list[ConfigValue]
) -> Iterator[tuple[str, ConfigValue]]:
    """Yield the named arguments of the program as (name, value), each once.

    If an argument is repeated, the last value is used, as in argparse. Words that are not named
    arguments are added to `loose`.
    """
    seen: dict[str, ConfigValue] = {}
    for title, line, values in _grouped(launch.arguments, places, findings, loose):
        name = _name_of(title)
        value: object = True if not values else values[0] if len(values) == 1 else values
        _report_repeated(seen.get(name), title, findings)
        seen[name] = ConfigValue(name, title, places.of(line), value)
    yield from seen.items()


def _name_of(title: str) -> str:
    return title.lstrip("-").replace("-", "_")


def _report_repeated(old: ConfigValue | None, title: str, findings: Findings) -> None:
    if old is not None:
        why = f"{title} is given again in the line, and the last one counts"
        row = ReportRow(KeyOutcome.IGNORED, old.title, old.place, old.value, None, why)
        findings.rows.append(row)


def _grouped(
    words: Sequence[Word], places: _Places, findings: Findings, loose: list[ConfigValue]
) -> Iterator[tuple[str, int, list[str]]]:
    group: tuple[str, int, list[str]] | None = None
    named: str | None = None
    for word in words:
        if word.problem.endswith(REST):
            why = "stands for the arguments of the script; if it gets any, write them here"
            row = ReportRow(KeyOutcome.UNKNOWN, word.problem[:2], places.of(word.line), None, None)
            findings.rows.append(replace(row, why=why))
        elif word.text.startswith("-") and not _NUMBER.match(word.text) and len(word.text) > 1:
            if group:
                yield group
            title, equals, written = word.text.partition("=")
            is_free = _name_of(title) in _UNNEEDED
            known = _is_known(word, title, is_free, places, findings)
            group = (title, word.line, [written] if equals else []) if known else None
            named = title
        elif word.problem and named is not None:
            is_free = _name_of(named) in _UNNEEDED
            _is_known(word, named, is_free, places, findings)
            group = None
        elif group:
            group[2].append(word.text)
        elif named is None:
            if not _is_known(word, "an argument of the program", False, places, findings):
                continue
            loose.append(ConfigValue(word.text, word.text, places.of(word.line), word.text))
    if group:
        yield group


def _is_known(word: Word, title: str, is_free: bool, places: _Places, findings: Findings) -> bool:
    """Return whether the text of `word` is known without a shell.

    If it is not known, a message is recorded. If `is_free` is true, no key of the job depends on
    the word, and the message is only a remark.
    """
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


def _report_start(start: StartCommand, places: _Places, findings: Findings) -> None:
    if start.starter in STARTED_BY:
        place = places.of(start.by[0].line)
        why = STARTED_BY[start.starter]
        row = ReportRow(KeyOutcome.IGNORED, start.starter, place, None, None, why)
        findings.rows.append(row)
        findings.steps.append(f"{start.starter}: {why}")


def _report_settings(launch: Launch, places: _Places, findings: Findings) -> None:
    names = [name for name in launch.settings if name not in (VISIBLE, AFFINITY, RANKS_BY)]
    if names:
        findings.steps.append(f"if the ranks need them, write {', '.join(names)} to [env]")
    for name, word in launch.settings.items():
        if name in (VISIBLE, AFFINITY, RANKS_BY):
            continue  # they have rows already
        why = "is an environment variable; if the ranks need it, write it to [env] of the job file"
        row = ReportRow(KeyOutcome.IGNORED, name, places.of(word.line), None, None, why)
        findings.rows.append(row)
