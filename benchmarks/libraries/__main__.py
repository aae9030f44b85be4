"""Our own code against the libraries that do the same: start-up, size on disk, and what is lost.

Start-up is processor time, which a busy machine changes less than wall time.

    python -m benchmarks.libraries [--venv DIRECTORY] [--runs 15]

The libraries are installed into a virtual environment of their own, which
--venv keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.libraries.answers import OURS_NEEDS
from benchmarks.measuring import ROOT, Measurement, interleaved, machine, measure

_SPEC = "from zerotools.jobs.tables.spec import JobSpec"
_TREE = "{'train': {'batch_size': 8, 'steps': 10}, 'model': {'config': '/c.json'}}"
_JSON = """b'{"train": {"batch_size": 8, "steps": 10}, "model": {"config": "/c.json"}}'"""


@dataclass(frozen=True)
class Choice:
    """One thing that we do ourselves: the files that do it, a statement that uses them, and for
    each library one that uses it for the same."""

    purpose: str
    files: tuple[str, ...]
    ours: str
    libraries: Mapping[str, str]


CHOICES = (
    Choice(
        "binding of the job file",
        ("jobs/binding/*.py", "jobs/jobfile/positions.py"),
        f"{_SPEC}\nfrom zerotools.jobs.binding.bind import build\nbuild(JobSpec, {_TREE}, '', [])",
        {
            "msgspec": f"{_SPEC}\nimport msgspec\nmsgspec.convert({_TREE}, JobSpec)",
            "pydantic": f"{_SPEC}\nimport pydantic\n"
            f"pydantic.TypeAdapter(JobSpec).validate_json({_JSON}, strict=True)",
        },
    ),
    Choice(
        "terminal tables and colour",
        ("cli/output/render.py", "cli/output/style.py"),
        "from zerotools.cli.output.render import print_lines, table\n"
        "print_lines(table(['id', 'name'], [['1', 'a']] * 20))",
        {
            "rich": "from rich.console import Console\nfrom rich.table import Table\n"
            "t = Table('id', 'name', box=None)\n"
            "for _ in range(20): t.add_row('1', 'a')\nConsole().print(t)",
            "tabulate": "from tabulate import tabulate\n"
            "print(tabulate([['1', 'a']] * 20, ['id', 'name'], 'plain'))",
        },
    ),
    Choice(
        "charts in the terminal",
        ("cli/output/braille_chart.py",),
        "import zerotools.cli.output.braille_chart",
        {"plotext": "import plotext"},
    ),
    Choice(
        "lenient JSON, with lines",
        ("jobs/text/json_*.py", "jobs/text/mends.py", "jobs/text/characters.py"),
        "from zerotools.jobs.text.json_text import parse_json\n"
        "parse_json('{\"a\": 1,}', source='x', lenient=True)",
        {
            "json5": "import json5\njson5.loads('{\"a\": 1,}')",
            "pyjson5": "import pyjson5\npyjson5.loads('{\"a\": 1,}')",
            "demjson3": "import demjson3\ndemjson3.decode('{\"a\": 1,}')",
        },
    ),
    Choice(
        "YAML, with lines",
        ("jobs/text/yaml_*.py",),
        "from zerotools.jobs.text.yaml_text import parse_yaml\nparse_yaml('a: 1', source='x')",
        {
            "PyYAML": "import yaml\nyaml.safe_load('a: 1')",
            "ruamel.yaml": "from ruamel.yaml import YAML\nYAML().load('a: 1')",
        },
    ),
    Choice(
        "TOML, written with comments",
        ("jobs/text/toml_text.py",),
        "import zerotools.jobs.text.toml_text",
        {"tomlkit": "import tomlkit"},
    ),
    Choice(
        "TensorBoard's event file",
        ("io/telemetry/event_file.py",),
        "import zerotools.io.telemetry.event_file",
        {
            "tensorboardX": "import tensorboardX",
            "tensorboard": "from tensorboard.summary.writer import event_file_writer",
        },
    ),
    Choice(
        "HTTP over the daemon's socket",
        ("jobs/client/daemon_client.py",),
        "import zerotools.jobs.client.daemon_client",
        {"httpx": "import httpx", "aiohttp": "import aiohttp"},
    ),
)


def environment(directory: Path) -> Path:
    """The interpreter of a virtual environment with all libraries, and what zerotools needs."""
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
    names = {name for choice in CHOICES for name in choice.libraries} | {*OURS_NEEDS}
    subprocess.run([str(python), "-m", "pip", "install", "-q", *sorted(names)], check=True)
    return python


def lines(choice: Choice) -> int:
    """Lines of ours that do it."""
    found = [file for pattern in choice.files for file in (ROOT / "zerotools").glob(pattern)]
    return sum(len(file.read_text().splitlines()) for file in found)


def rows(python: Path, runs: int) -> list[str]:
    """A line of Markdown for each way to do each thing, above an empty interpreter."""
    empty = "python -c pass"
    statements = {empty: "pass"}
    for choice in CHOICES:
        statements |= {f"{choice.purpose} | ours": choice.ours}
        statements |= {f"{choice.purpose} | {n}": code for n, code in choice.libraries.items()}

    def once(statement: str) -> Callable[[], Measurement]:
        return lambda: measure([str(python), "-c", statement])

    results = interleaved({name: once(code) for name, code in statements.items()}, runs=runs)
    spent = {name: 1000 * median(r.cpu_seconds for r in found) for name, found in results.items()}
    told = [f"An empty interpreter takes {spent[empty]:.0f} ms, which are taken off.\n"]
    told += ["| what | by | CPU ms | installed MB | lines of ours |", "|---|---|---|---|---|"]
    for choice in CHOICES:
        name = f"{choice.purpose} | ours"
        told.append(f"| {name} | {spent[name] - spent[empty]:.0f} | | {lines(choice)} |")
        for library in choice.libraries:
            name = f"{choice.purpose} | {library}"
            version, size = asked(python, "size_of", library)
            took = spent[name] - spent[empty]
            told.append(f"| {name} {version} | {took:.0f} | {size / 1e6:.1f} | |")
    return told


def asked(python: Path, function: str, *arguments: str) -> Any:
    """What a function of `answers` answers in that environment."""
    command = [str(python), "-m", "benchmarks.libraries.answers", function, *arguments]
    found = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, text=True)
    return json.loads(found.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as temporary:
        python = environment((options.venv or Path(temporary)).absolute())
        print(f"{machine()}; median of {options.runs} fresh processes.", end=" ")
        print("\n".join(rows(python, options.runs)))
        for function in ("mistakes", "pages", "escapes"):
            print("\n" + "\n".join(asked(python, function)))


if __name__ == "__main__":
    main()
