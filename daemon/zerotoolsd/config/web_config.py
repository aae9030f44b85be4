"""`[web]` of `zerotoolsd.toml`: the page for a browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.jobs.binding.bind import show
from zerotools.jobs.binding.declaration import key
from zerotools.jobs.binding.durations import seconds_of


@dataclass(frozen=True, kw_only=True)
class WebConfig:
    """`[web]`: the page that `zerotools web` gives a link to; see
    [see the queue in a browser](../how-to/see-the-queue-in-a-browser.md)."""

    enabled: bool = key(
        "Whether to serve the page. Its port opens when a user first requests a link.", default=True
    )
    port: int | None = key(
        "The port at 127.0.0.1. Not set: one of 8730 to 8793 that is free; of root's daemon one of "
        "954 to 988, which no other user can take while the daemon is stopped.",
        default=None,
        minimum=1,
        maximum=65535,
    )
    session: int | str = key(
        "A browser needs a new link if it sent no request for this long: seconds, or text "
        'such as `"12h"`.',
        default="12h",
    )


def wrong_web(config: WebConfig) -> Iterator[str]:
    """Yield the errors in `[web]`."""
    where = f"web.session = {show(config.session)}"
    try:
        if seconds_of(config.session) < 60:
            yield f"{where}: must be at least 60 s"
    except ValueError as error:
        yield f"{where}: {error}"
