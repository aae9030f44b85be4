"""Check names of tasks against the files of lm-evaluation-harness, which contain the names of its
tasks.

The job's interpreter runs this file as a program. Its first argument is a directory with the user's
tasks, or empty; the other arguments are names of tasks. The program prints as JSON each unknown
name with the most similar known names. It imports only the standard library, and not the harness,
which needs 20 s of processor time to read the same 14,000 files.
"""

from __future__ import annotations

import difflib
import fnmatch
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

NEAREST = 3
_MOST_CHARACTERS = 1 << 20
_KEY = re.compile(r"""^["']?(?:task|group|tag)["']?[ \t]*:[ \t]*(.*?)[ \t\r]*$""", re.MULTILINE)
_ENTRY = re.compile(r"[ \t]*-[ \t]+(?:(?:task|group):[ \t]*)?(.*?)[ \t\r]*|[ \t]*#.*|[ \t]*")


def unknown_tasks_refusal(unknown: Mapping[str, Sequence[str]]) -> str:
    """Return the error message for a job with unknown names in `eval.tasks`.

    `unknown` is unknown name -> the most similar known names.
    """
    said = []
    for name, nearest in unknown.items():
        near = f" (nearest: {', '.join(nearest)})" if nearest else ""
        said.append(f"{name}{near}")
    return (
        f"eval.tasks: lm-evaluation-harness has no task {', and no task '.join(said)}; "
        "correct the name, or set eval.task_dir to the directory of your tasks"
    )


def unknown_tasks(wanted: Sequence[str], directories: Iterable[Path]) -> dict[str, list[str]]:
    """Return the names in `wanted` that no file in the directories contains: name -> the most
    similar known names. A name may be a pattern such as `mmlu_*`.
    """
    known = {name for directory in directories for name in _names_in(directory)}
    missing = [name for name in wanted if name not in known and not fnmatch.filter(known, name)]
    return {name: difflib.get_close_matches(name, known, NEAREST) for name in missing}


def _names_in(directory: Path) -> Iterator[str]:
    for parent, _, files in os.walk(directory):
        for name in files:
            if Path(name).suffix in ("", ".yaml"):  # files that others include have none
                try:
                    with Path(parent, name).open(encoding="utf-8", errors="replace") as file:
                        text = file.read(_MOST_CHARACTERS)
                except OSError:
                    continue
                yield from _names_of(text)


def _names_of(text: str) -> Iterator[str]:
    """Yield the names in one file of the harness: the name of its task or group, and its tags."""
    for found in _KEY.finditer(text):
        if value := _plain(found[1]):
            yield from map(_plain, value.strip("[]").split(","))
            continue
        for line in text[found.end() + 1 :].split("\n"):  # a list, an entry on each line
            if (entry := _ENTRY.fullmatch(line)) is None:
                break
            if entry[1]:
                yield _plain(entry[1])


def _plain(value: str) -> str:
    """Return a YAML scalar without its quotes and without a comment after it."""
    return re.sub(r"(^|[ \t])#.*", "", value).strip().strip("\"'")


def main() -> None:
    """Check the task names in the command-line arguments, and print the unknown ones as JSON."""
    own, *wanted = sys.argv[1:]
    found = importlib.util.find_spec("lm_eval")
    places = (found and found.submodule_search_locations) or ()
    directories = [Path(place, "tasks") for place in places]
    if own:
        directories.append(Path(own))
    print(json.dumps(unknown_tasks(wanted, directories)))


if __name__ == "__main__":
    main()
