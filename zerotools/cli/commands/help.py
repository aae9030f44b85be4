"""`zerotools help`: show a page of the documentation."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

import click

from zerotools.cli.help_topics import KINDS, Topic, all_topics, find_topic, in_own_language
from zerotools.cli.markdown_to_plain_text import plain_text
from zerotools.cli.options.click_options import json_option
from zerotools.cli.output import render
from zerotools.cli.output.language import can_show, translated

WIDEST = 80


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in all_topics() if name.startswith(incomplete)]


@click.command("help")
@click.argument("topic", metavar="[TOPIC]", required=False, shell_complete=_complete)
@click.option("--list", "as_list", is_flag=True, help="List the names of the topics, one per line.")
@json_option
@click.pass_context
def command(context: click.Context, topic: str | None, as_list: bool, as_json: bool) -> None:
    """Show a page of the documentation; without TOPIC, list the pages.

    TOPIC is a page, such as install or troubleshooting, or a command. At a terminal, a page is
    shown by $PAGER. A word in brackets in the text of a page, such as [numa], is also a TOPIC.
    """
    if topic is None or as_list:
        topics = all_topics()
        if as_json:
            render.print_json({"topics": [_facts(each) for each in topics.values()]})
        else:
            render.print_lines(topics if as_list else _contents(topics))
        return
    if topic not in all_topics() and (page := _page_of_command(context, topic)) is not None:
        if as_json:
            page_of = {"topic": topic, "kind": "command", "title": f"zerotools {topic}"}
            render.print_json({"page": {**page_of, "text": page}})
        else:
            _show(page)
        return
    found = find_topic(topic)
    if as_json:
        render.print_json({"page": {**_facts(found), "text": found.markdown()}})
        return
    columns = min(render.terminal_columns() or WIDEST, WIDEST)
    _show("\n".join(plain_text(found.markdown(), columns)))


def _facts(topic: Topic) -> Mapping[str, str]:
    return {"topic": topic.name, "kind": topic.kind, "title": topic.title}


def _contents(topics: Mapping[str, Topic]) -> Iterator[str]:
    yield translated("Topics; read one with: zerotools help TOPIC")
    width = max(map(len, topics))
    for kind in KINDS:
        yield ""
        yield f"{translated(kind.capitalize())}:"
        for topic in topics.values():
            if topic.kind == kind:
                own = in_own_language(topic).title
                title = own if can_show(own, sys.stdout) else topic.title
                yield render.shorten(f"  {topic.name.ljust(width)}  {title}", WIDEST)


def _page_of_command(context: click.Context, name: str) -> str | None:
    """Return the help of a command; None if the command does not exist."""
    group = context.find_root()
    if not isinstance(group.command, click.Group):
        return None
    found = group.command.get_command(group, name)
    if found is None:
        return None
    return found.get_help(click.Context(found, info_name=name, parent=group))


def _show(text: str) -> None:
    if sys.stdout.isatty():
        click.echo_via_pager(text + "\n")
    else:
        render.print_lines(text.splitlines())
