"""What the libraries of `benchmarks.libraries` answer to the cases that our own code is there for.

Run in their environment, with the name of a function; prints what it answers as JSON.
"""

from __future__ import annotations

import importlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

OURS_NEEDS = ("aiohttp", "click", "numpy", "psutil", "safetensors", "tqdm")
"""Dependencies of zerotools that a library may share: they add nothing to what is installed."""

MISTAKES = {
    "train": {"stepps": 10, "batch_size": "8", "steps": 1.5},
    "model": {"config": "/c.json"},
    "device": 3,
}
"""An unknown key and three values of a wrong type."""

WHOLE = {
    "train_batch_size": 16,
    "fp16": {"enabled": True, "loss_scale": 0},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
    "optimizer": {"type": "AdamW", "params": {"lr": 5e-5, "betas": [0.9, 0.999]}},
}
_TEXT = json.dumps(WHOLE, indent=2)
PAGES = {
    "no-break spaces": _TEXT.replace("  ", "\u00a0\u00a0"),
    "typographic quotes": _TEXT.replace('"', "\u201d"),
    "single quotes": _TEXT.replace('"', "'"),
    "a Python literal": f"ds_config = {WHOLE!r}",
    "missing commas": _TEXT.replace(",\n", "\n"),
    "trailing commas": _TEXT.replace("\n}", ",\n}"),
    "comments with //": _TEXT.replace(",\n", ", // as needed\n"),
    "comments with #": _TEXT.replace(",\n", ", # as needed\n"),
    "text around": f"Save this:\n\n```json\n{_TEXT}\n```\n",
    "line numbers": "\n".join(f"{i} {x}" for i, x in enumerate(_TEXT.split("\n"), 1)),
    "keys without quotes": _TEXT.replace('"stage"', "stage"),
    "full-width colons": _TEXT.replace(":", "\uff1a"),
}
REFUSED = {"a key twice": '{"a": 1, "a": 2}', "dots that stand for more": '{"a": 1, ...}'}


def _ours(text: str) -> object:
    from zerotools.jobs.text.json_text import parse_json

    return parse_json(text, source="x", lenient=True).tree


def readers() -> dict[str, Callable[[str], object]]:
    """How each reads a text; whatever it raises is a refusal."""
    named: dict[str, Any] = {
        name: importlib.import_module(name) for name in ("json5", "pyjson5", "demjson3", "yaml")
    }
    return {
        "ours": _ours,
        "json5": named["json5"].loads,
        "pyjson5": named["pyjson5"].loads,
        "demjson3": named["demjson3"].decode,
        "ruamel.yaml": importlib.import_module("ruamel.yaml").YAML().load,
        "PyYAML": named["yaml"].safe_load,
    }


def pages() -> Iterator[str]:
    """Damaged configs: read as they were meant, read as something else, refused."""
    yield f"| reader | of {len(PAGES)} pages: right | wrong | refuses {' / '.join(REFUSED)} |"
    yield "|---|---|---|---|"
    for name, read in readers().items():
        values = [_value(read, text) for text in PAGES.values()]
        right = sum(value == WHOLE for value in values)
        wrong = sum(value not in (WHOLE, None) for value in values)
        refused = ["no" if _value(read, text) else "yes" for text in REFUSED.values()]
        yield f"| {name} | {right} | {wrong} | {' / '.join(refused)} |"


def _value(read: Callable[[str], object], text: str) -> object:
    try:
        return read(text)
    except Exception:  # each library has errors of its own
        return None


def mistakes() -> Iterator[str]:
    """How many of the four mistakes one run of each binding names."""
    import msgspec  # type: ignore[import-not-found, unused-ignore]
    import pydantic

    from zerotools.jobs.binding.bind import build
    from zerotools.jobs.tables.spec import JobSpec

    problems: list[str] = []
    build(JobSpec, MISTAKES, "", problems)
    yield "| binding | mistakes named at once, of 4 | the first |\n|---|---|---|"
    yield f"| ours | {len(problems)} | `{problems[0]}` |"
    try:
        msgspec.convert(MISTAKES, JobSpec)
    except msgspec.ValidationError as error:
        yield f"| msgspec | 1 | `{error}` |"
    try:
        pydantic.TypeAdapter(JobSpec).validate_json(json.dumps(MISTAKES), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        yield f"| pydantic | {error.error_count()} | `{where}: {first['msg']}` |"


def escapes() -> Iterator[str]:
    """What a job's name with a control sequence becomes in a table that a pipe reads."""
    console: Any = importlib.import_module("rich.console")
    table = importlib.import_module("rich.table").Table("name", box=None)
    out = io.StringIO()
    table.add_row(importlib.import_module("rich.text").Text("a\x1b[2Jb"))
    console.Console(file=out).print(table)
    passed = "passes" if "\x1b[2J" in out.getvalue() else "does not pass"
    yield f"rich {passed} an escape sequence of a job's name on to the terminal."


def size_of(name: str) -> tuple[str, int]:
    """A library's version, and the bytes of its files and of all that it needs and we do not."""
    ours: set[str] = set()
    for need in OURS_NEEDS:
        _with_needs(need, ours)
    added: set[str] = set()
    _with_needs(name, added)
    files = [file for each in added - ours for file in distribution(each).files or ()]
    paths = [Path(str(file.locate())) for file in files if file.suffix != ".pyc"]
    return version(name), sum(path.stat().st_size for path in paths if path.exists())


def _with_needs(name: str, found: set[str]) -> None:
    """Add `name` and what it needs to `found`; what only an extra needs is not installed."""
    if name in found:
        return
    try:
        needs = distribution(name).requires or []
    except PackageNotFoundError:
        return
    found.add(name)
    for need in needs:
        match = re.match(r"[\w.-]+", need)
        if match and "extra ==" not in need:
            _with_needs(re.sub(r"[-_.]+", "-", match[0]).lower(), found)


def main() -> None:
    function, *arguments = sys.argv[1:]
    answer = globals()[function](*arguments)
    print(json.dumps([*answer]))


if __name__ == "__main__":
    main()
