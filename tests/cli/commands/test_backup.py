from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Done
from tests.jobs.client.test_queue_backup import fill
from zerotools.cli.main import build, run


def test_what_was_copied_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def zerotools(*arguments: str) -> Done:
        return Done(run(build(), list(arguments)), *capsys.readouterr())

    fill(tmp_path).close()
    out, also = tmp_path / "copy.db", tmp_path / "also.db"
    done = zerotools("backup", str(out), "--state-dir", str(tmp_path))
    assert done == (0, f"{out}: 2 jobs, 1 of them unfinished\n", "")
    one = tmp_path / "one"
    one.mkdir()
    with closing(fill(one)) as database:
        database.execute("DELETE FROM job WHERE id = 2")
    done = zerotools("backup", str(one / "copy.db"), "--state-dir", str(one))
    assert done.out.endswith("copy.db: 1 job, 0 of them unfinished\n")
    done = zerotools("backup", str(also), "--state-dir", str(tmp_path), "--json")
    told = json.loads(done.out)["copy"]
    assert told | {"size_bytes": 0} == {
        "path": str(also),
        "jobs": 2,
        "unfinished": 1,
        "last_change": 7,
        "size_bytes": 0,
    }
    done = zerotools("backup", str(out), "--state-dir", str(tmp_path))
    assert done.status == 2
    assert done.err == f"error: {out} exists\nhint: name a file that does not exist\n"
