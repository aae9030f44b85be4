"""Our Hub answers its own client as the Hub does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from harness.stores import trouble
from harness.stores.faults import FaultProxy
from harness.stores.hub import HubServer
from harness.stores.hub_repos import HubRepo

TOKEN, OTHER = "hf_reads", "hf_other"
SMALL, LARGE = b'{"a": 1}', bytes(range(256)) * 40


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    pytest.importorskip("huggingface_hub")
    tokens = {TOKEN: {"team/private", "team/gated"}, OTHER: set()}
    with HubServer(tokens, page_entries=3) as server:
        for name in ("public", "private", "gated"):
            flags = {"private": name == "private", "gated": name == "gated"}
            repo = server.add(HubRepo(f"team/{name}", **flags))
            repo.tags["v1"] = repo.commit({"config.json": b"{}"})
            files = {f"step-{step}/model.safetensors": LARGE for step in (1, 2)}
            repo.commit({"config.json": SMALL, "step-1/ä b.json": SMALL, **files})
        yield server


@pytest.fixture
def api(hub: HubServer) -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=hub.url, token=False)


def test_pages_of_the_tree(hub: HubServer, api: Any) -> None:
    entries = api.list_repo_tree("team/public", recursive=True)
    assert [each.path for each in entries] == [
        *("config.json", "step-1", "step-1/model.safetensors", "step-1/ä b.json"),
        *("step-2", "step-2/model.safetensors"),
    ]
    top = {each.path: each for each in api.list_repo_tree("team/public")}
    assert top.keys() == {"config.json", "step-1", "step-2"}
    assert top["config.json"].size == len(SMALL)
    [inside] = api.list_repo_tree("team/public", "step-2")
    assert (inside.size, inside.lfs.size) == (len(LARGE), len(LARGE))
    assert len(api.get_paths_info("team/public", ["config.json", "step-1", "none"])) == 2


def test_revisions(hub: HubServer, api: Any) -> None:
    from huggingface_hub.errors import RevisionNotFoundError

    repo = hub.repos["model", "team/public"]
    assert api.model_info("team/public").sha == repo.branches["main"]
    old = api.model_info("team/public", revision="v1", files_metadata=True)
    assert [(each.rfilename, each.size) for each in old.siblings] == [("config.json", 2)]
    [tag] = api.list_repo_refs("team/public").tags
    assert tag.target_commit == old.sha == repo.tags["v1"]
    with pytest.raises(RevisionNotFoundError):
        api.model_info("team/public", revision="none")


def test_files_small_and_large(hub: HubServer, api: Any, tmp_path: Path) -> None:
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.errors import EntryNotFoundError

    for name, data in (("step-1/ä b.json", SMALL), ("step-1/model.safetensors", LARGE)):
        where = api.hf_hub_download("team/public", name, cache_dir=tmp_path)
        assert Path(where).read_bytes() == data
    url = f"{hub.url}/team/public/resolve/main/step-1/model.safetensors"
    told = get_hf_file_metadata(url, token=False)
    assert (told.size, told.commit_hash) == (len(LARGE), api.model_info("team/public").sha)
    assert told.location.startswith(hub.cdn_url)
    with pytest.raises(EntryNotFoundError):
        api.hf_hub_download("team/public", "none", cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("token", "status", "error"),
    [
        (False, 401, "RepositoryNotFoundError"),
        (OTHER, 404, "RepositoryNotFoundError"),
        ("hf_nobody", 401, "HfHubHTTPError"),
    ],
)
def test_a_private_repository(
    hub: HubServer, api: Any, token: Any, status: int, error: str
) -> None:
    from huggingface_hub import errors

    assert api.model_info("team/private", token=TOKEN).private
    with pytest.raises(getattr(errors, error)) as refused:
        api.model_info("team/private", token=token)
    assert refused.value.response.status_code == status
    assert type(refused.value).__name__ == error


def test_a_gated_repository_is_seen_and_its_files_are_for_few(
    hub: HubServer, api: Any, tmp_path: Path
) -> None:
    from huggingface_hub.errors import GatedRepoError

    assert api.model_info("team/gated").gated == "auto"
    for token, status in ((False, 401), (OTHER, 403)):
        with pytest.raises(GatedRepoError) as refused:
            api.hf_hub_download("team/gated", "config.json", token=token, cache_dir=tmp_path)
        assert refused.value.response.status_code == status
    name = "step-2/model.safetensors"
    where = api.hf_hub_download("team/gated", name, token=TOKEN, cache_dir=tmp_path)
    assert Path(where).read_bytes() == LARGE


def test_links_to_large_files(hub: HubServer) -> None:
    large = "step-2/model.safetensors"
    with FaultProxy(hub.cdn.url) as proxy, FaultProxy(hub.url) as before:
        hub.cdn_url = proxy.url
        proxy.add(trouble.ACCESS_DENIED, number=2)
        where = f"{before.url}/team/public/resolve/main/{large}"
        asked = Request(where, headers={"Range": "bytes=1-2"})
        with urlopen(asked) as answer:
            assert answer.read() == LARGE[1:3]
        with pytest.raises(HTTPError, match="403"):
            urlopen(asked)
        assert (before.counts, proxy.counts) == ({"range": 2}, {"range": 2})
        hub.cdn_url = hub.cdn.url
    repo = hub.repos["model", "team/public"]
    link = hub.cdn.link(hub.cdn.url, repo.commits[repo.branches["main"]][large])
    with pytest.raises(HTTPError, match="400"):  # it has a signature already
        urlopen(Request(link, headers={"Authorization": f"Bearer {TOKEN}"}))
    hub.cdn.expire_links()
    with pytest.raises(HTTPError, match="403"):
        urlopen(link)
