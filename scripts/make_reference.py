"""Write the reference pages that follow from the code; with --check, say which are out of date.

docs/reference/job-file.md comes from `zerotools.jobs.jobfile_tables`,
docs/reference/command-line.md from the commands themselves, docs/reference/python.md from the
functions of `zerotools`, docs/reference/zerotoolsd.md from `zerotoolsd.config.daemon_config`,
docs/reference/openapi.json from `zerotoolsd.http.api.openapi.openapi_document`. The table of
docs/how-to/hold-a-job.md and the words of the page for browsers come from
`zerotools.jobs.states`.
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, is_dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import click
from python_reference import python_page

from zerotools.cli.command_table import SECTIONS
from zerotools.cli.main import build
from zerotools.jobs import states
from zerotools.jobs.binding.bind import table_of
from zerotools.jobs.binding.declaration import keys_of
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.app.command_line import make_parser
from zerotoolsd.config.daemon_config import Config
from zerotoolsd.http.api.openapi.openapi_document import document

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
HOLD_PAGE = ROOT / "docs" / "how-to" / "hold-a-job.md"
WORDS_BEGIN = "<!-- Written by scripts/make_reference.py from zerotools/jobs/states.py. -->"
WORDS_END = "<!-- The table ends. -->"
WORDS_SCRIPT = ROOT / "daemon/zerotoolsd/http/web/files" / "js" / "job_words.js"

JOB_FILE_HEAD = """\
# The job file

<!-- Written by scripts/make_reference.py from zerotools/jobs/jobfile_tables; do not edit. -->

A job is one TOML file (JSON is accepted too). Relative paths are relative to the file. A key that
is not listed here is an error, and so is a value outside its bounds. A size is a number of bytes,
or text such as `"64GiB"`. A time is a number of seconds, or text such as `"2h"`.

```toml
device = "cpu"
ranks = 2
output_dir = "runs/tiny"

[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 4

[data]
text = ["corpus/**/*.txt"]
sequence_length = 128

[train]
steps = 200
batch_size = 12

[zero]
stage = 3

[checkpoint]
every = 50
```
"""

COMMAND_LINE_HEAD = """\
# The command line

<!-- Written by scripts/make_reference.py from the commands; do not edit. -->

Options of all commands are left out below: `--help`, `--debug` (show the traceback of an error),
where a command prints results `--json` ([the keys](json.md)), and for commands on jobs
`--socket PATH` (of the daemon; `$ZEROTOOLS_SOCKET`, or the standard path).
"""
COMMON_OPTION = re.compile(
    r"^  --(?:help +Show this message|debug +Show the traceback|json +Print JSON (?:inst|\(sch)|"
    r"socket PATH +Socket of the daemon).*\n(?: {10,}.*\n)*",
    re.MULTILINE,
)


DAEMON_HEAD = """\
# zerotoolsd

<!-- Written by scripts/make_reference.py from zerotoolsd/command and config.py; do not edit. -->

{help}

The state directory is `--state-dir`, else `$ZEROTOOLS_STATE_DIR`, else `/var/lib/zerotools` for
root, else `$XDG_STATE_HOME/zerotools` (`~/.local/state/zerotools`). The socket is `--socket`, else
`$ZEROTOOLS_SOCKET`, else `api.sock` in a state directory set by option or variable, else
`$XDG_RUNTIME_DIR/zerotools/api.sock`, else `api.sock` in the state directory (always for root).

A daemon of root refuses a state directory that other users could change. The directory and all its
parents must belong to root, and only root may have write access (parents may have the sticky bit,
like `/tmp`).

SIGTERM and SIGINT stop the daemon, but not its jobs; the next daemon with the same state
directory continues to watch them. [Exit codes](exit-codes.md) are those of `zerotools`; a second
daemon with the same state directory exits with 5 and names the first.

## What is in the state directory

```text
zerotools.db               the queue, an SQLite database
zerotools.db.schema-N.bak  its copy before an upgrade
zerotools.db.last-change   the number of its last change: an older queue is refused
restored.json              after a restore, until the next start
daemon.lock                held by the daemon that runs; its pid is inside
jobs/ID/attempt-N/         one start of a job:
  attempt.json, spec.json  the request
  run.json                 the processes that run it
  rank-K.log               output of rank K
  progress.jsonl           reports of the ranks, one JSON object per line
  exit.json                how it ended; ended.json while an export still runs
jobs/ID/held.log           why the job was held, if it was, with the traceback
data-cache/                tokenised data, for restarts and for other jobs
jobs/ID/output/            checkpoints of a job without `output_dir`
cleaning/ID                a job that is being removed
```

An unreadable queue stops the daemon. The daemon copies an older queue before it opens it, and
refuses one of a newer version: [Back up the queue](../how-to/back-up-the-queue.md).

If the machine has no space, inodes, descriptors, memory or processes left, or its disk reports
errors, jobs wait and none fails. `zerotools queue` and `zerotools show` report
`the machine is not ready`, with the reason. This does not count for `max_restarts`.

After an unexpected error with a job, the job is **held** with the reason, and the others continue.
`zerotools release` continues it, `zerotools cancel` ends it.

The daemon removes none of these files unless `[retention]` is set: see
[Clean up](../how-to/clean-up.md).

## The configuration file

TOML, given with `--config`. A key that is not listed here is an error. A size is a number of bytes,
or text such as `"64GiB"`. A time is a number of seconds, or text such as `"2h"`.
"""


def job_file() -> str:
    sections = [JOB_FILE_HEAD, *_table("Top level", JobSpec), *_tables(JobSpec)]
    return "\n".join(sections) + "\n"


def daemon() -> str:
    options = ["| option | meaning |", "|---|---|"]
    for action in make_parser()._actions:
        named = action.metavar or (action.dest.upper() if action.type is not None else "")
        value = f" [{named}]" if action.nargs == "?" else f" {named}" if named else ""
        shown = f"{action.option_strings[-1]}{value}"
        options.append(f"| `{shown}` | {action.help} |")
    head = DAEMON_HEAD.format(help="\n".join(options))
    return "\n".join([head, *_tables(Config)]) + "\n"


def _tables(spec: type) -> Iterator[str]:
    for name, hint in get_type_hints(spec).items():
        table = table_of(hint) or hint
        if is_dataclass(table):
            assert isinstance(table, type)
            yield from _table(f"`[{name}]`", table)
            for key_name, key_hint in get_type_hints(table).items():
                if get_origin(key_hint) is tuple and (row := table_of(key_hint)) is not None:
                    yield from _table(f"`[[{name}.{key_name}]]`", row)


def _table(title: str, spec: type) -> Iterator[str]:
    yield f"\n## {title}\n"
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    hints = get_type_hints(spec)
    for field in keys_of(spec):
        hint = hints[field.name]
        if is_dataclass(hint):
            continue
        kind, meaning = _quantity(_type(hint), field.metadata["doc"])
        kind += _range(field.metadata)
        meaning += _values(field.metadata["allowed"], meaning)
        yield f"| `{field.name}` | {kind} | {_default(field)} | {meaning} |"


def _type(hint: Any) -> str:
    names = {str: "string", int: "integer", float: "number", bool: "boolean"}
    if hint in names:
        return names[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        known = [_type(each) for each in arguments if each is not type(None)]
        return " or ".join(known)
    if origin is tuple:
        return "list of " + " or ".join(f"{name}s" for name in _type(arguments[0]).split(" or "))
    if is_dataclass(hint):
        return "table"
    assert origin is not None, f"{hint} has no name for people"
    assert issubclass(origin, Mapping), f"{hint} has no name for people"
    return "table"


def _default(field: Field[Any]) -> str:
    if field.default is not MISSING:
        value = field.default
        if value is None:
            return ""
        if isinstance(value, tuple):
            return f"`{list(value)}`"
        return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"
    if field.default_factory is not MISSING:
        return field.metadata["shown"] or "`{}`"
    return "required"


def _quantity(kind: str, meaning: str) -> tuple[str, str]:
    """Name a type "size" or "time" if the meaning explains it, and take the explanation out."""
    if kind != "integer or string":
        return kind, meaning
    for name, unit in (("size", "bytes"), ("time", "seconds")):
        explained = (
            rf":? {unit},(?: or)? text(?: such as `\"\w+\"`(?: or `\"\w+\"`)?)?(, or `\"never\"`)?"
        )
        meaning, number = re.subn(explained, r"\1", meaning, flags=re.IGNORECASE)
        if number:
            return name, meaning
    return kind, meaning


def _values(allowed: tuple[Any, ...], meaning: str) -> str:
    """The allowed values, unless the meaning has each of them."""
    if all(re.search(rf'`"?{re.escape(str(value))}"?`', meaning) for value in allowed or ()):
        return ""
    shown = (f'`"{v}"`' if isinstance(v, str) else f"`{v}`" for v in allowed)
    return f" One of {', '.join(shown)}."


def _range(rules: Mapping[str, Any]) -> str:
    least, most, above = rules["minimum"], rules["maximum"], rules["above"]
    if most is not None and most < 2**62:
        return f", {least} to {most}"
    if least is not None:
        return f" ≥ {least}"
    return "" if above is None else f" > {above}"


def command_line() -> str:
    group = build()
    context = click.Context(group, info_name="zerotools", max_content_width=100, terminal_width=100)
    pages = [COMMAND_LINE_HEAD, "```text", group.get_help(context), "```"]
    for section in SECTIONS:
        pages.append(f"\n## {section}")
        for name, entry in group.entries.items():
            if entry.section == section:
                pages += _command_page(group, context, name)
    return "\n".join(pages) + "\n"


def _command_page(group: click.Group, context: click.Context, name: str) -> list[str]:
    command = group.get_command(context, name)
    assert command is not None
    own = click.Context(
        command, info_name=name, parent=context, max_content_width=100, terminal_width=100
    )
    text = COMMON_OPTION.sub("", f"{command.get_help(own)}\n")
    text = re.sub(r"\nGeneral:\n(?=\n|\Z)", "", text)
    return [f"\n### zerotools {name}\n", "```text", text.strip("\n"), "```"]


def openapi() -> str:
    return json.dumps(document(), indent=1) + "\n"


def hold_page() -> str:
    before, rest = HOLD_PAGE.read_text().split(WORDS_BEGIN)
    after = rest.split(WORDS_END)[1]
    return f"{before}{WORDS_BEGIN}\n\n{states.markdown_table()}\n\n{WORDS_END}{after}"


def words_script() -> str:
    rows = [
        {"job": each.job} | {verb: getattr(each, verb) for verb in states.VERBS}
        for each in states.VERB_ROWS
    ]
    return (
        "// Written by scripts/make_reference.py from zerotools/jobs/states.py; do not edit.\n\n"
        "/** The words for stored states that people read otherwise. */\n"
        f"export const WORDS = {json.dumps(dict(states.WORDS), indent=2)};\n\n"
        "/** The stored states. */\n"
        f"export const STATES = {json.dumps(states.STATES)};\n\n"
        "/** The meaning of each word, which is its colour. */\n"
        f"export const MEANINGS = {json.dumps(dict(states.MEANINGS), indent=2)};\n\n"
        "/** The words that are followed by the time in this state. */\n"
        f"export const TIMED_WORDS = {json.dumps(sorted(states.TIMED_WORDS))};\n\n"
        "/** What each verb does to a job. */\n"
        f"export const VERBS = {json.dumps(states.VERBS)};\n"
        f"export const VERB_ROWS = {json.dumps(rows, indent=2)};\n"
    )


PAGES = {
    REFERENCE / "job-file.md": job_file,
    REFERENCE / "python.md": python_page,
    REFERENCE / "command-line.md": command_line,
    REFERENCE / "zerotoolsd.md": daemon,
    REFERENCE / "openapi.json": openapi,
    HOLD_PAGE: hold_page,
    WORDS_SCRIPT: words_script,
}


def main(arguments: list[str]) -> int:
    stale = []
    for path, render in PAGES.items():
        text = render()
        if not path.exists() or path.read_text() != text:
            stale.append(path.relative_to(ROOT))
            if "--check" not in arguments:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    verb = "out of date" if "--check" in arguments else "written"
    for name in stale:
        print(f"{name}: {verb}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
