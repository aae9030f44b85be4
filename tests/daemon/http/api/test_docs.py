"""docs/reference/http-api.md names what there is."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import a_job, a_view, an_attempt
from zerotoolsd.http.api import responses
from zerotoolsd.http.api.routes import make_app

PAGE = (Path(__file__).parents[4] / "docs" / "reference" / "http-api.md").read_text("utf-8")


def test_every_request_is_documented(tmp_path: Path) -> None:
    for route in make_app(FakeService(tmp_path)).router.routes():
        if route.method == "HEAD":
            continue
        assert route.resource is not None
        assert f"| `{route.method} {route.resource.canonical}" in PAGE


def test_every_field_of_a_job_is_documented() -> None:
    view = a_view(1, a_job(), attempts=(an_attempt(),)).to_json()
    for name in [*view, *view["attempt"]]:
        assert f"`{name}`" in PAGE, name


def test_every_code_is_documented() -> None:
    named = [(status, code) for _, status, code in responses.STATUS]
    for status, code in [*named, *responses.HTTP_CODES.items()]:
        assert f"| `{code}` | {status} |" in PAGE, code
