"""Messages of each service: texts stay texts, nothing is too long, and answers are read."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.daemon.queue.tables.test_notice_outbox import a_notice
from zerotoolsd.config.notify_config import DINGTALK, DISCORD, FEISHU, JSON, NTFY, SLACK
from zerotoolsd.monitoring.notifications.message_formats import (
    LATE_SECONDS,
    REQUESTS,
    NotDelivered,
    NoticeText,
    ServiceRequest,
    check_answer,
    secrets_in,
    with_age,
)

URLS = {
    SLACK: "https://hooks.slack.com/services/T0/B0/XXXXXXXXXXXX",
    DISCORD: "https://discord.com/api/webhooks/1/XXXXXXXXXXXX?thread_id=7",
    FEISHU: "https://open.feishu.cn/open-apis/bot/v2/hook/XXXXXXXXXXXX",
    DINGTALK: "https://oapi.dingtalk.com/robot/send?access_token=XXXXXXXXXXXX",
    NTFY: "https://ntfy.lab/base/topic",
}
EVIL = '@everyone <!channel> <@U1> <at user_id="all"></at> *b* _i_ `c` [x](https://e.test) # h'
FAR = "Sun, 06 Nov 1994 08:49:37 +99999999999999999999"
LINK = "https://gpu.lab/#/jobs/7"


def request(service: str, title: str = EVIL, *lines: str, **more: Any) -> ServiceRequest:
    text = NoticeText(kind="failed", key="k" * 32, title=title, lines=lines, link=more.get("link"))
    return REQUESTS[service](text, URLS[service], more.get("secret"), 1_700_000_000.25)


def test_slack_shows_texts_as_they_are() -> None:
    found = request(SLACK, EVIL, EVIL, "second", link=LINK)
    header, section, link = found.tree["blocks"]
    assert found.url == URLS[SLACK]
    assert header["text"]["type"] == section["text"]["type"] == "plain_text"
    escaped = EVIL.replace("<", "&lt;").replace(">", "&gt;")
    assert section["text"]["text"] == f"{escaped}\nsecond"
    assert link["text"]["text"] == f"<{LINK}|Open the job>"
    shown = json.dumps([found.tree["text"], header, section])
    assert "<" not in shown
    assert request(SLACK, "a & b").tree["text"] == "a &amp; b"


def test_discord_shows_texts_as_they_are_and_mentions_nobody() -> None:
    found = request(DISCORD, EVIL, EVIL, link=LINK)
    assert found.tree["allowed_mentions"] == {"parse": []}
    (embed,) = found.tree["embeds"]
    assert embed["url"] == LINK
    assert embed["title"].startswith(r"\@everyone \<!channel\> \<\@U1\>")
    assert embed["title"].replace("\\", "") == EVIL
    assert r"\[x\]\(https\://e.test\) \# h" in embed["description"]
    assert parse_qs(urlsplit(found.url).query) == {"thread_id": ["7"], "wait": ["true"]}


def test_feishu_gets_a_signed_post_of_plain_text() -> None:
    found = request(FEISHU, EVIL, EVIL, link=LINK, secret="s3cret")
    tree = found.tree
    assert (tree["msg_type"], tree["timestamp"]) == ("post", "1700000000")
    key = b"1700000000\ns3cret"
    assert tree["sign"] == base64.b64encode(hmac.digest(key, b"", "sha256")).decode()
    post = tree["content"]["post"]["en_us"]
    assert post["content"][1] == [{"tag": "a", "text": "Open the job", "href": LINK}]
    assert "<at" not in json.dumps(tree)
    assert post["title"].replace("\u200b", "") == EVIL
    assert "sign" not in request(FEISHU).tree
    assert "<AT" not in json.dumps(request(FEISHU, '<AT user_id="all">', "</AT>").tree)


def test_dingtalk_gets_a_text_with_the_signature_in_the_address() -> None:
    found = request(DINGTALK, EVIL, "second", link=LINK, secret="SECabc")
    assert found.tree["msgtype"] == "text"
    assert found.tree["text"]["content"] == f"{EVIL}\nsecond\n{LINK}"
    assert found.tree["at"] == {"atMobiles": [], "isAtAll": False}
    query = parse_qs(urlsplit(found.url).query)
    signed = hmac.new(b"SECabc", b"1700000000250\nSECabc", hashlib.sha256).digest()
    assert query == {
        "access_token": ["XXXXXXXXXXXX"],
        "timestamp": ["1700000000250"],
        "sign": [base64.b64encode(signed).decode()],
    }
    assert request(DINGTALK).url == URLS[DINGTALK]


def test_ntfy_gets_the_topic_and_a_sequence() -> None:
    found = request(NTFY, "failed", EVIL, link=LINK, secret="tk_1")
    assert found.url == "https://ntfy.lab/base/"
    assert found.headers == {"Authorization": "Bearer tk_1"}
    assert found.tree == {
        "topic": "topic",
        "title": "failed",
        "message": EVIL,
        "priority": 4,
        "tags": ["x"],
        "sequence_id": "k" * 32,
        "click": LINK,
    }


@pytest.mark.parametrize("letter", ["x", "<", "*", "é", "\U0001f600", "\udcff"])
@pytest.mark.parametrize("service", sorted(URLS))
def test_no_text_is_too_long_for_its_service(service: str, letter: str) -> None:
    tree = request(service, letter * 5000, letter * 50_000, letter * 50_000).tree
    size = len(json.dumps(tree).encode())
    if service == SLACK:
        assert all(
            0 < len(block["text"]["text"]) <= most
            for block, most in zip(tree["blocks"], (150, 3000), strict=True)
        )
        assert not any(b["text"]["text"][:-1].endswith(("&", "&l")) for b in tree["blocks"])
    elif service == DISCORD:
        (embed,) = tree["embeds"]
        assert len(embed["title"]) <= 256
        assert len(embed["description"]) <= 4096
    elif service == FEISHU:
        assert len(json.dumps(tree, ensure_ascii=False).encode("utf-8", "replace")) < 20_000
        assert size < 60_000
    elif service == DINGTALK:
        assert len(tree["text"]["content"]) <= 5000
    else:
        assert len(tree["message"].encode()) <= 4096


def test_a_notice_of_an_older_version_has_its_text() -> None:
    text = NoticeText.of(a_notice(body=json.dumps({"text": "job 7\nhas failed"})))
    assert (text.title, text.lines, text.link) == ("job 7 has failed", [], None)


def test_the_age_of_a_late_notice_is_in_its_title() -> None:
    notice = a_notice(created=100.0, body=json.dumps({"text": "job 7 has failed", "id": "k"}))
    assert with_age(notice, 100.0 + LATE_SECONDS - 1) is notice
    late = with_age(notice, 700.0)
    assert NoticeText.of(late).title == "job 7 has failed (10 min ago)"
    assert json.loads(late.body)["id"] == "k"
    assert late.key == notice.key


def refusal(service: str, status: int, body: str = "", **headers: str) -> NotDelivered:
    with pytest.raises(NotDelivered) as found:
        check_answer(service, status, headers, body.encode(), ["XXXXXXXXXXXX"])
    return found.value


@pytest.mark.parametrize(
    ("service", "status", "body", "said"),
    [
        (SLACK, 404, "no_service", "status 404: no_service"),
        (SLACK, 403, "XXXXXXXXXXXX\x1b is bad", r"status 403: ***\x1b is bad"),
        (JSON, 500, "", "status 500"),
        (
            JSON,
            302,
            "x",
            "status 302: a redirect, which zerotoolsd does not follow; use the address that it "
            "redirects to",
        ),
        (FEISHU, 200, '{"code": 19021, "msg": "sign match fail"}', "status 200: "),
        (DINGTALK, 200, '{"errcode": 310000, "errmsg": "sign not match"}', "status 200: "),
        (
            DINGTALK,
            200,
            "<html>",
            "status 200: <html>; this answer is not from dingtalk: check the URL",
        ),
        (FEISHU, 200, "", "status 200; this answer is not from feishu: check the URL"),
        (FEISHU, 200, '{"code": false}', "status 200: "),
        (FEISHU, 200, "[" * 100_000, "status 200: [["),
    ],
)
def test_an_answer_that_is_a_refusal(service: str, status: int, body: str, said: str) -> None:
    found = str(refusal(service, status, body))
    assert found.startswith(said)
    assert len(found) < 300


@pytest.mark.parametrize(
    ("service", "body"),
    [
        (SLACK, "ok"),
        (DISCORD, ""),
        (FEISHU, '{"code": 0, "msg": "success", "StatusCode": 0}'),
        (FEISHU, '{"StatusCode": 0, "StatusMessage": "success"}'),
        (DINGTALK, '{"errcode": 0, "errmsg": "ok"}'),
    ],
)
def test_an_answer_that_is_none(service: str, body: str) -> None:
    assert check_answer(service, 200, {}, body.encode(), []).startswith("status 200")


@pytest.mark.parametrize(
    ("found", "seconds"),
    [
        (refusal(SLACK, 429, **{"Retry-After": "30"}), 30.0),
        (refusal(DISCORD, 429, '{"retry_after": 0.75}', **{"Retry-After": "1"}), 0.75),
        (refusal(FEISHU, 429, **{"x-ogw-ratelimit-reset": "52"}), 52.0),
        (refusal(FEISHU, 200, '{"code": 11232, "msg": "too fast"}'), 60.0),
        (refusal(DINGTALK, 200, '{"errcode": 130101, "errmsg": "too fast"}'), 600.0),
        (
            refusal(
                JSON,
                503,
                Date="Sun, 06 Nov 1994 08:49:37 GMT",
                **{"Retry-After": "Sun, 06 Nov 1994 08:50:37 GMT"},
            ),
            60.0,
        ),
        (refusal(DISCORD, 429, f'{{"retry_after": {10**400}}}', **{"Retry-After": "7"}), 7.0),
        (refusal(JSON, 429, Date="Sun, 06 Nov 1994 08:49:37 GMT", **{"Retry-After": FAR}), None),
        (refusal(JSON, 429, **{"Retry-After": "-5"}), None),
        (refusal(JSON, 429, **{"Retry-After": "nan"}), None),
        (refusal(JSON, 429, **{"Retry-After": "soon"}), None),
        (refusal(JSON, 429), None),
    ],
)
def test_how_long_a_service_asks_to_wait(found: NotDelivered, seconds: float | None) -> None:
    assert found.retry_after == seconds


def test_a_name_that_is_not_utf8_makes_no_invalid_json() -> None:
    body = json.dumps({"title": "job \udc80", "details": ["checkpoint /\ud800"]})
    text = NoticeText.of(a_notice(body=body))
    assert (text.title, text.lines) == ("job ?", ["checkpoint /?"])


def test_secrets_in_addresses() -> None:
    assert secrets_in(URLS[DINGTALK]) == ["XXXXXXXXXXXX"]
    assert secrets_in(URLS[SLACK]) == ["XXXXXXXXXXXX"]
    found = secrets_in("https://host/a%2Fbcdefghi?key=k%2Bl+mnopqrs&b=1")
    assert found == ["a%2Fbcdefghi", "a/bcdefghi", "k%2Bl+mnopqrs", "k+l+mnopqrs", "k+l mnopqrs"]
