"""Formats a notice for each service, and reads the answers of the services. No I/O.

Texts of users (names of jobs, errors of programs) are shown as plain text: they cannot format a
message or mention anybody. Texts that are too long for a service are cut. The formats are
documented in:

- Slack, "Sending messages using incoming webhooks", "Formatting message text", "Rate limits"
  (docs.slack.dev), and its text object, header and section blocks
- Discord, "Execute Webhook", "Embed Limits", "Allowed Mentions Object", "Rate Limits"
  (discord.com/developers/docs)
- Feishu and Lark, "Custom bot usage guide" (open.feishu.cn/document/client-docs/bot-v3)
- DingTalk, "Custom robot access" (open.dingtalk.com/document/robots/custom-robot-access)
- ntfy, "Publish as JSON", "Limitations" (docs.ntfy.sh/publish)
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_plus, urlencode, urlsplit, urlunsplit

from zerotools.jobs.text.mask_secrets import HIDDEN
from zerotoolsd.config import notify_config
from zerotoolsd.queue.sql_values import one_line
from zerotoolsd.queue.tables.notice_outbox import Notice
from zerotoolsd.supervisor.heartbeats.stall_detector import format_duration


class NotDelivered(Exception):
    """A delivery failed. The message gives the reason.

    The service asked to wait for `retry_after` seconds; None if it did not ask to wait.
    """

    def __init__(self, why: str, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


@dataclass(frozen=True, kw_only=True)
class NoticeText:
    """The texts of a notice: its title, more lines, and the address of the job's page."""

    kind: str
    key: str
    title: str
    lines: Sequence[str]
    link: str | None

    @classmethod
    def of(cls, notice: Notice) -> NoticeText:
        """Return the texts of `notice`, which may have been stored by an older version."""
        tree = json.loads(notice.body)
        return cls(
            kind=notice.notice,
            key=notice.key,
            title=_encodable(one_line(str(tree.get("title") or tree.get("text") or notice.notice))),
            lines=[_encodable(str(line)) for line in tree.get("details", ())],
            link=tree.get("link"),
        )

    @property
    def all_lines(self) -> list[str]:
        """Return all lines, the title first and the link last."""
        return [self.title, *self.lines, *([self.link] if self.link else [])]


LATE_SECONDS = 60.0
"""A notice that is delivered later than this shows its age."""


def with_age(notice: Notice, now: float) -> Notice:
    """Return the notice with its age in its texts, as in `has failed (10 min ago)`, if the notice
    is late.

    The time `now` is in seconds since the epoch.
    """
    age = now - notice.created
    if age < LATE_SECONDS:
        return notice
    tree = json.loads(notice.body)
    title, text = str(tree.get("title") or ""), str(tree.get("text") or "")
    aged = f"{title or text} ({format_duration(age)} ago)"
    rest = text.removeprefix(title) if title else ""
    return replace(notice, body=json.dumps({**tree, "title": aged, "text": f"{aged}{rest}"}))


@dataclass(frozen=True, kw_only=True)
class ServiceRequest:
    """A POST request of JSON to a service."""

    url: str = field(repr=False)
    tree: Any
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


_GOOD = frozenset({"started", "first_step", "succeeded"})
_BAD = frozenset({"failed", "held", "stalled", "memory_short", "disk_short"})
_GREEN, _RED, _GREY = 0x2DA44E, 0xCF222E, 0x6E7781


def slack_request(text: NoticeText, url: str, secret: str | None, now: float) -> ServiceRequest:
    """Return the request to an incoming webhook of Slack.

    Plain text objects have no markup; `&`, `<` and `>` are escaped, so `<!channel>` is only text.
    A header has at most 150 characters, and a section 3000.
    """
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": _slack_text(text.title, 150)},
        *({"type": "section", "text": _slack_text(each, 3000)} for each in _joined(text.lines)),
    ]
    if text.link is not None:
        link = {"type": "mrkdwn", "text": f"<{_slack_escaped(text.link)}|Open the job>"}
        blocks.append({"type": "section", "text": link})
    return ServiceRequest(url=url, tree={"text": _slack_escaped(text.title), "blocks": blocks})


def _slack_text(text: str, most: int) -> dict[str, Any]:
    # The limit counts the escaped text; an entity must not be cut.
    for length in range(most, 0, -1):
        escaped = _slack_escaped(_cut(text, length))
        if len(escaped) <= most:
            return {"type": "plain_text", "text": escaped, "emoji": False}
    raise AssertionError("one character fits")


def _slack_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_DISCORD_MARKUP = re.compile(r"([\\*_~`|<>#\[\]()@:-])")


def discord_request(text: NoticeText, url: str, secret: str | None, now: float) -> ServiceRequest:
    """Return the request to a webhook of Discord: one embed, which may mention nobody.

    A title has at most 256 characters and a description 4096; escaping at most doubles the length.
    With `wait`, Discord answers after it has saved the message.
    """
    color = _GREEN if text.kind in _GOOD else _RED if text.kind in _BAD else _GREY
    embed = {
        "title": _DISCORD_MARKUP.sub(r"\\\1", _cut(text.title, 128)),
        "description": _DISCORD_MARKUP.sub(r"\\\1", _cut("\n".join(text.lines), 2048)),
        "color": color,
        **({"url": text.link} if text.link is not None else {}),
    }
    tree = {"embeds": [embed], "allowed_mentions": {"parse": []}}
    return ServiceRequest(url=_with_query(url, wait="true"), tree=tree)


def feishu_request(text: NoticeText, url: str, secret: str | None, now: float) -> ServiceRequest:
    """Return the request to a custom bot of Feishu or Lark: a post of plain text elements.

    A request has at most 20 KB. The signature is the HMAC-SHA256 of an empty text with the key
    `TIMESTAMP\\nSECRET`; the timestamp is in seconds.
    """
    rows: list[list[dict[str, str]]] = [
        [{"tag": "text", "text": _without_mention(_cut_bytes(each, 12_000))}]
        for each in _joined(text.lines)
    ]
    if text.link is not None:
        rows.append([{"tag": "a", "text": "Open the job", "href": text.link}])
    post = {"title": _without_mention(_cut(text.title, 300)), "content": rows}
    tree: dict[str, Any] = {"msg_type": "post", "content": {"post": {"en_us": post}}}
    if secret is not None:
        timestamp = f"{now:.0f}"
        tree |= {"timestamp": timestamp, "sign": _hmac(f"{timestamp}\n{secret}", "")}
    return ServiceRequest(url=url, tree=tree)


def _without_mention(text: str) -> str:
    return re.sub(r"<(?=/?at\b)", "<\u200b", text, flags=re.IGNORECASE)


def dingtalk_request(text: NoticeText, url: str, secret: str | None, now: float) -> ServiceRequest:
    """Return the request to a custom robot of DingTalk: a text without markup.

    Only the members in `at` are mentioned. A text has at most 5000 characters. The signature is the
    HMAC-SHA256 of `TIMESTAMP\\nSECRET` with the secret as the key; the timestamp is in
    milliseconds.
    """
    content = _cut("\n".join(text.all_lines), 4000)
    tree = {
        "msgtype": "text",
        "text": {"content": content},
        "at": {"atMobiles": [], "isAtAll": False},
    }
    if secret is not None:
        timestamp = f"{now * 1000:.0f}"
        sign = _hmac(secret, f"{timestamp}\n{secret}")
        url = _with_query(url, timestamp=timestamp, sign=sign)
    return ServiceRequest(url=url, tree=tree)


def ntfy_request(text: NoticeText, url: str, secret: str | None, now: float) -> ServiceRequest:
    """Return the request to ntfy: JSON to the root of the server, with the topic inside.

    A message has at most 4096 bytes. A message with the same sequence id replaces an earlier one,
    so a repeated delivery is not shown twice.
    """
    parts = urlsplit(url)
    root, _, topic = parts.path.rstrip("/").rpartition("/")
    is_bad = text.kind in _BAD
    tag = "x" if text.kind == "failed" else "warning" if is_bad else "white_check_mark"
    tree = {
        "topic": topic,
        "title": _cut(text.title, 250),
        "message": _cut_bytes("\n".join(text.lines) or text.title, 4000),
        "priority": 4 if is_bad else 3,
        "tags": [tag] if is_bad or text.kind in _GOOD else [],
        "sequence_id": text.key,
        **({"click": text.link} if text.link is not None else {}),
    }
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    address = urlunsplit((parts.scheme, parts.netloc, f"{root}/", "", ""))
    return ServiceRequest(url=address, tree=tree, headers=headers)


RequestMaker = Callable[[NoticeText, str, str | None, float], ServiceRequest]
REQUESTS: Mapping[str, RequestMaker] = {
    notify_config.SLACK: slack_request,
    notify_config.DISCORD: discord_request,
    notify_config.FEISHU: feishu_request,
    notify_config.DINGTALK: dingtalk_request,
    notify_config.NTFY: ntfy_request,
}
"""Function of the text, the address, the secret and the time (seconds since the epoch) that makes
the request to a service, by service.
"""

ANSWERS_IN_BODY = frozenset({notify_config.FEISHU, notify_config.DINGTALK})
"""Services that report errors in the body of an answer with the status 200."""
_TOO_FAST: Mapping[int, float] = {11232: 60.0, 130101: 600.0}
"""Seconds to wait after an error code of Feishu or DingTalk: too many messages."""
_LONGEST_ANSWER = 200
_LEAST_SECRET = 10
"""Characters of a secret in an address. Shorter parts are words, such as `webhooks`."""


def check_answer(
    service: str, status: int, headers: Mapping[str, str], body: bytes, hidden: Sequence[str]
) -> str:
    """Return the answer of a service in a few words. Raise NotDelivered if the service has not
    accepted the message.

    The texts in `hidden` are secrets, and are removed from the result.
    """
    tree = _json_object(body)
    said = masked_answer(body.decode("utf-8", "replace"), hidden)
    words = f"status {status}: {said}" if said else f"status {status}"
    if 300 <= status < 400:
        raise NotDelivered(
            f"status {status}: a redirect, which zerotoolsd does not follow; use the address that "
            "it redirects to"
        )
    if not 200 <= status < 300:
        raise NotDelivered(words, _retry_after(headers, tree))
    if service not in ANSWERS_IN_BODY:
        return words
    code = next((tree[name] for name in ("errcode", "code", "StatusCode") if name in tree), None)
    if code != 0 or isinstance(code, bool):
        wait = _TOO_FAST.get(code) if isinstance(code, int) else None
        raise NotDelivered(
            words if tree else f"{words}; this answer is not from {service}: check the URL", wait
        )
    return words


def secrets_in(url: str) -> list[str]:
    """Return the parts of `url` that may be secrets: long parts of its path and of its query.

    Each part is returned both as it is and decoded, because an answer may contain either form.
    """
    parts = urlsplit(url)
    values = (each.partition("=")[2] for each in parts.query.split("&"))
    raw = [*parts.path.split("/"), *values]
    found = dict.fromkeys(
        form for each in raw for form in (each, unquote(each), unquote_plus(each))
    )
    return [each for each in found if len(each) >= _LEAST_SECRET]


def masked_answer(said: str, hidden: Sequence[str]) -> str:
    """Return the beginning of a server's answer `said`, on one line, without `hidden` texts."""
    text = one_line(said.strip())
    for each in sorted(hidden, key=len, reverse=True):
        text = text.replace(each, HIDDEN)
    return _cut(text, _LONGEST_ANSWER)


def _json_object(body: bytes) -> Mapping[str, Any]:
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _retry_after(headers: Mapping[str, str], tree: Mapping[str, Any]) -> float | None:
    """Return the seconds that the service asks to wait; None if it does not ask to wait.

    Discord's JSON is more exact than its header. Feishu has a separate header.
    """
    given = (tree.get("retry_after"), headers.get("Retry-After"))
    for each in (*given, headers.get("x-ogw-ratelimit-reset")):
        try:
            seconds = float(each) if isinstance(each, (int, float, str)) else -1.0
        except OverflowError:  # an integer of hundreds of digits
            continue
        except ValueError:
            seconds = _until(str(each), headers.get("Date"))
        if 0 <= seconds < 1e9:
            return seconds
    return None


def _until(date: str, now: str | None) -> float:
    try:
        return (parsedate_to_datetime(date) - parsedate_to_datetime(now or "")).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return -1.0


def _joined(lines: Sequence[str]) -> list[str]:
    """Return the lines joined to one text, in a list; an empty list if there are no lines."""
    return ["\n".join(lines)] if any(lines) else []


def _encodable(text: str) -> str:
    """Return `text` with lone surrogates replaced: services refuse JSON that contains them."""
    return text.encode("utf-8", "replace").decode()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _cut_bytes(text: str, most: int) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    return f"{data[: most - 3].decode('utf-8', 'ignore')}…"


def _hmac(key: str, message: str) -> str:
    digest = hmac.new(key.encode(), message.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def _with_query(url: str, **values: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query=urlencode([*parse_qsl(parts.query), *values.items()])))
