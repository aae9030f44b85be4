"""What is made of rows for those who ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.dispatchers import Running
from tests.daemon.service.test_answer_requests import ME, submit, tell
from zerotoolsd.attempts import last_report
from zerotoolsd.http.api.authorize import AuthorizedRequest
from zerotoolsd.http.api.visible_fields import view_for
from zerotoolsd.users.rights import Access, Caller, Rights


def test_no_file_of_others_is_opened_to_list_their_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(it: Running) -> None:
        job = await submit(it)
        whole = await it.reach(job.id, "succeeded")

        def refuse(*arguments: object, **keys: object) -> None:
            raise AssertionError("a report was read")

        monkeypatch.setattr(last_report, "last_report", refuse)
        monkeypatch.setattr(it.engine, "why_it_waits", refuse)
        (seen,) = await it.service.jobs(whole=lambda uid: uid != ME)
        by = AuthorizedRequest(Caller(uid=ME + 2), Access.MASKED, Rights(own=ME + 1))
        assert view_for(seen, by) == view_for(whole, by)
        assert (seen.spec, seen.output_dir, seen.attempts[0].run_dir) == ({}, "", "")

    tell(tmp_path / "state", story)
