"""A job of which the directories do not respond holds up no command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.jobs.client.test_needed_checkpoints import FakeClient, job, saved
from zerotools.jobs.client.need_looks import MOST_HANGING, NeedLooker
from zerotools.jobs.client.needed_checkpoints import needs

SILENT = "print('ready', flush=True)\nfor line in __import__('sys').stdin: pass"
AFTER_THE_FIRST = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    if "hangs" not in line:
        print('[["/a", "/b", "why"]]', flush=True)
"""


def looker(program: str) -> NeedLooker:
    return NeedLooker((sys.executable, "-c", program), deadline_seconds=0.3)


def test_what_a_process_sees_is_what_is_needed(tmp_path: Path) -> None:
    saved(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    client: Any = FakeClient([job(output_dir=str(tmp_path / "link"))])
    (need,) = needs(client)
    assert need.path == tmp_path / "link" / "step-00000006"
    assert need.real == tmp_path / "real" / "step-00000006"
    assert need.concerns(tmp_path / "real" / "step-00000006")


def test_one_that_does_not_respond_holds_up_none_of_the_others() -> None:
    found = looker(AFTER_THE_FIRST)
    assert found.needs(job(name="hangs")) is None
    seen = found.needs(job())
    assert seen is not None
    assert [each.real for each in seen] == ["/b"]
    found.close()


def test_what_a_silent_job_names_is_needed(tmp_path: Path) -> None:
    named = {"resume_from": str(tmp_path / "a"), "script": {"checkpoint_dir": str(tmp_path / "c")}}
    client: Any = FakeClient([job(output_dir=str(tmp_path / "out"), spec=named)])
    found = needs(client, looker(SILENT))
    assert {need.path.name for need in found} == {"out", "a", "c"}
    assert found[0].concerns(tmp_path / "out" / "step-3")
    assert not any(need.concerns(tmp_path / "other") for need in found)
    assert "its directories do not respond" in found[0].sentence(tmp_path)


def test_a_process_that_starts_too_slowly_gives_no_answer() -> None:
    late = "import sys\nfor line in sys.stdin: print('ready', flush=True)"
    found = NeedLooker((sys.executable, "-c", late), deadline_seconds=30.0, start_seconds=0.1)
    assert found.needs(job()) is None
    assert found.needs(job()) is None
    found.close()


def test_few_processes_are_left_behind() -> None:
    found = looker(SILENT)
    assert [found.needs(job()) for _ in range(MOST_HANGING + 3)] == [None] * (MOST_HANGING + 3)
    assert found._hanging == MOST_HANGING
    found.close()
