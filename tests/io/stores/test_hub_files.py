from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.stores.hub import HubServer
from harness.stores.hub_repos import HubRepo
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.stores.parse_url import path_of
from zerotools.io.stores.store_path import writable_store

DATA = bytes(range(256)) * 1000
TOKEN = "hf_secret_token_of_ada"


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    """One for the module: huggingface_hub reads its endpoint when it is imported."""
    pytest.importorskip("huggingface_hub")
    with HubServer({TOKEN: {"team/private"}}) as hub, pytest.MonkeyPatch.context() as patch:
        for name, value in hub.env.items():
            patch.setenv(name, value)
        patch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        patch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        patch.delenv("HF_TOKEN", raising=False)
        model = hub.add(HubRepo("team/model"))
        model.commit({"config.json": b"{}", "sub/model.safetensors": DATA})
        hub.add(HubRepo("team/private", private=True)).commit({"config.json": b"{}"})
        yield hub


def test_a_repository_is_a_directory(hub: HubServer) -> None:
    root = path_of("hf://team/model")
    assert sorted(each.name for each in root.iterdir()) == ["config.json", "sub"]
    assert (root / "sub").is_dir()
    assert (root / "sub/model.safetensors").stat().st_size == len(DATA)
    source = path_of("hf://team/model@main/sub/model.safetensors").open_source()  # type: ignore[attr-defined]
    assert source.read(5, 1000) == DATA[1000:1005]
    assert source.read(len(DATA), 0) == DATA
    assert source.read(5, 2000) == DATA[2000:2005]


def test_a_revision_stays_what_it_was_when_it_was_first_asked_for(hub: HubServer) -> None:
    repo = hub.add(HubRepo("team/moving"))
    repo.commit({"a": b"before"})
    path = path_of("hf://team/moving/a")
    assert path.stat().st_size == 6
    repo.commit({"a": b"and after"})
    assert path.open_source().read(100, 0) == b"before"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("hf://team/none", "does not know it, or does not show it to you"),
        ("hf://team/private", "does not know it, or does not show it to you"),
        ("hf://team/model@nowhere", "has no revision 'nowhere'"),
        ("hf://datasets/team/model", "holds no checkpoints"),
    ],
)
def test_what_cannot_be_seen_is_refused(hub: HubServer, url: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        path_of(url).exists()


def test_the_token_is_huggingface_hubs_own(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from zerotools.io.stores.hub_files import HubFiles

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert HubFiles("team", "private").head("config.json") is not None


def test_it_is_only_read(hub: HubServer) -> None:
    with pytest.raises(Unsupported, match="hf:// is read-only; write to s3://"):
        writable_store(path_of("hf://team/model/out"))
