"""`[notify]` of zerotoolsd.toml: its places, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotoolsd.config.daemon_config import load_config
from zerotoolsd.config.notify_config import NoticeDestination, NotifyConfig, service_of

HIDDEN = "https://hooks.slack.com/services/T0/B0/hunter2"


def loaded(tmp_path: Path, text: str) -> NotifyConfig:
    path = tmp_path / "zerotoolsd.toml"
    path.write_text(f"[notify]\n{text}")
    return load_config(path).notify


def test_a_place_has_the_service_of_its_host(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        f'''webhook = "https://chat.lab/x"
[[notify.places]]
name = "team"
url = "{HIDDEN}"
[[notify.places]]
name = "phone"
url = "http://10.0.0.5/topic"
service = "ntfy"
secret = "tk_abc"
on = ["first_step", "disk_short"]
[[notify.places]]
name = "mail"
to = ["me@example.org"]
sender = "gpu@box1"
''',
    )
    assert [(each.name, each.kind) for each in config.all_destinations] == [
        ("team", "slack"),
        ("phone", "ntfy"),
        ("mail", "email"),
        ("webhook", "json"),
    ]
    assert config.places[0].on == NoticeDestination(name="x").on
    assert "memory_short" in config.places[0].on


@pytest.mark.parametrize(
    ("url", "service"),
    [
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://open.larksuite.com/open-apis/bot/v2/hook/x", "feishu"),
        ("https://oapi.dingtalk.com/robot/send?access_token=x", "dingtalk"),
        ("https://NTFY.sh/topic", "ntfy"),
        ("https://discord.com.evil.test/x", "json"),
        ("https://[::1/", "json"),
    ],
)
def test_services_of_hosts(url: str, service: str) -> None:
    assert service_of(url) == service


NAMED = '[[notify.places]]\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (NAMED, 'notify.places: "a": name its url, or addresses of e-mail'),
        (f'{NAMED}url = "ftp://hunter2"', "url: must begin with https:// or http:// and a host"),
        (f'{NAMED}url = "https://me:hunter2@host/"', "url: must not have a user or a password"),
        (f'{NAMED}url = "{HIDDEN}"\nsecret = "s"', "secret: slack uses no secret; remove it"),
        (f'{NAMED}url = "{HIDDEN}"\nto = ["me@x.org"]', "keys of e-mail, and this is slack"),
        (f'{NAMED}url = "https://ntfy.sh/"', "url: must end with the topic"),
        (f'{NAMED}to = ["-oQ/tmp@x.org"]', '"-oQ/tmp@x.org" is not an address of e-mail'),
        (f'{NAMED}to = ["me@x.org, you@x.org"]', "is not an address of e-mail"),
        (f'{NAMED}to = ["me@x.org\\nBcc: a@b.c"]', "is not an address of e-mail"),
        (f'{NAMED}to = ["me@x.org"]\nsender = "me"', '"me" is not an address of e-mail'),
        (f'{NAMED}to = ["me@x.org"]\nservice = "emial"', 'did you mean "email"?'),
        (f'{NAMED}to = ["me@x.org"]\non = ["done"]', 'on: "done" is not one of started'),
        (f'{NAMED}to = ["me@x.org"]\n' * 2, '"a" appears 2 times; give each its own name'),
        ('[[notify.places]]\nname = "a b"\nto = ["me@x.org"]', "name: must be letters"),
        ('[[notify.places]]\nto = ["me@x.org"]', "name: is missing"),
        ('webhook = "https://h/"\n[[notify.places]]\nname = "webhook"\nto = ["a@b.c"]', "2 times"),
        (f'places = "{HIDDEN}"', "must be a list"),
        ('places = ["x"]', 'entry 0 ("x") must be a table'),
        ('link = "gpu.lab"', "notify.link: must begin with https:// or http:// and a host"),
        ('disk_free = "much"', 'notify.disk_free = "much": '),
        ('keep_trying = "x"', 'notify.keep_trying = "x": '),
        ('networks = ["x"]', "notify.networks: "),
        ('allow = ["ho st"]', 'notify.allow: "ho st" must be an address'),
        ('on = ["done"]', 'notify.on: "done" is not one of'),
    ],
)
def test_a_wrong_place_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(BadRequest) as found:
        loaded(tmp_path, text)
    assert sentence in str(found.value)
    if not text.startswith("places = "):
        assert "hunter2" not in str(found.value)
