"""The port of the page, over the lives of several daemons."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest

from harness.ports import free_port
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.web.pages import ANNA, serving_page
from zerotoolsd.config.config_tables import WebConfig
from zerotoolsd.http.web.page_server import PORTS, PORTS_OF_ROOT
from zerotoolsd.interface.api_types import Conflict, Unavailable

ANY = WebConfig()
"""One of the ports that daemons choose from; only these tests do."""


def test_nothing_listens_before_the_first_link(service: FakeService, tmp_path: Path) -> None:
    with serving_page(service, tmp_path / "page", ANY) as served:
        assert served.page.port is None
        port = served.link(ANNA)["port"]
        assert served.page.port == port
        assert port in (*PORTS, *PORTS_OF_ROOT)
        assert served.link(ANNA)["port"] == port


def test_an_open_page_goes_on_with_the_next_daemon(service: FakeService, tmp_path: Path) -> None:
    with serving_page(service, tmp_path / "page", ANY) as served:
        browser = served.browser()
        me = browser.me
    with serving_page(service, tmp_path / "page", ANY) as served:
        assert served.page.port == browser.port
        assert browser.me == me
    with serving_page(service, tmp_path / "page", ANY) as served:
        assert served.page.end(ANNA) == 1
    with serving_page(service, tmp_path / "page", ANY) as served:
        assert served.page.port is None


def test_where_somebody_took_the_port_all_sessions_end(
    service: FakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving_page(service, tmp_path / "page", ANY) as served:
        browser = served.browser()
    with closing(socket.create_server(("127.0.0.1", browser.port))):
        with serving_page(service, tmp_path / "page", ANY) as served:
            assert served.page.port is None
            assert served.link(ANNA)["port"] != browser.port
        assert "is taken: 1 session has ended" in caplog.text
    with serving_page(service, tmp_path / "page", ANY) as served:
        assert served.page.port is None


def test_a_port_of_the_configuration_and_no_other(service: FakeService, tmp_path: Path) -> None:
    port = free_port()
    with serving_page(service, tmp_path / "page", WebConfig(port=port)) as served:
        assert served.link(ANNA)["url"].startswith(f"http://127.0.0.1:{port}/link/")
    with (
        closing(socket.create_server(("127.0.0.1", port))),
        serving_page(service, tmp_path / "other", WebConfig(port=port)) as served,
        pytest.raises(Unavailable, match=f"port {port} at 127.0.0.1 is in use"),
    ):
        served.link(ANNA)


def test_it_can_be_switched_off(service: FakeService, tmp_path: Path) -> None:
    with serving_page(service, tmp_path / "page", ANY) as served:
        served.browser()
    with serving_page(service, tmp_path / "page", WebConfig(enabled=False)) as served:
        assert served.page.port is None
        with pytest.raises(Conflict, match=r"\[web\] enabled = false"):
            served.link(ANNA)


def test_it_listens_at_this_machine_alone(service: FakeService, tmp_path: Path) -> None:
    with serving_page(service, tmp_path / "page", ANY) as served:
        port = served.link(ANNA)["port"]
        with pytest.raises(OSError, match="refused"), closing(socket.socket()) as link:
            link.connect(("127.0.0.2", port))
