"""Handler of /v1/import, which makes a job from one of three sources: a job file, a DeepSpeed
config, or a conversion.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.make_conversion_job import (
    check_conversion,
    conversion_tree,
    option_sets,
    refuse_relative_paths,
)
from zerotools.jobs.jobfile.parse import given_of, job_from_tree, read_tree
from zerotoolsd.http.api import request_validation
from zerotoolsd.http.api.responses import json_response

LONGEST_NAME = 255
MOST_SEARCHED_LINES = 300
"""The length, in lines, up to which a job file is searched for the line of a wrong key. The search
parses the beginning of the file many times."""
OF_DEEPSPEED = frozenset(
    {
        *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        "zero_optimization",
    }
)
"""Keys of DeepSpeed's config that no job file has at its top level."""


async def read_job_file(request: web.Request) -> web.Response:
    """Handle POST /v1/import: return the job in the body. No file is read, so paths in the body
    must be absolute.
    """
    known = ("text", "deepspeed", "name", "convert")
    body = await request_validation.json_object(request, known=known)
    text = request_validation.body_text(body, "text", request_validation.LONGEST_TEXT)
    deepspeed = request_validation.body_text(body, "deepspeed", request_validation.LONGEST_TEXT)
    name = request_validation.body_text(body, "name", LONGEST_NAME) or "job file"
    if (words := body.get("convert")) is not None:
        if text is not None:
            raise BadRequest("convert and text cannot be combined; leave one out")
        return json_response({"job": conversion_job(words), "text": "", "missing": [], "notes": []})
    if text is None:
        raise BadRequest("the key 'text' is missing")
    return json_response(await asyncio.to_thread(imported_job, text, deepspeed, name))


def imported_job(text: str, deepspeed: str | None, name: str) -> dict[str, Any]:
    """Return the job in `text`, combined with a DeepSpeed config if one is given. `name` is the
    name of the source in messages.

    If `text` itself is a DeepSpeed config, it is not a complete job. In this case `job` is None,
    `missing` has the missing keys, and `text` is a job file that the user must complete. Raises
    BadRequest and Unsupported.
    """
    tree = read_tree(text, source=name)
    if deepspeed is None and not tree.keys() & OF_DEEPSPEED:
        lines = text if text.count("\n") < MOST_SEARCHED_LINES else None
        spec = job_from_tree(tree, source=name, base_dir=None, text=lines)
        return {"job": given_of(spec), "text": text, "missing": [], "notes": []}
    from zerotools.jobs.imports.combine_configs import JobFile, import_configs, job_text
    from zerotools.jobs.imports.reading.import_report import Wording, next_steps, report_lines
    from zerotools.jobs.text.json_parser import parse_json

    config = text if deepspeed is None else deepspeed
    source = name if deepspeed is None else "DeepSpeed config"
    job = None if deepspeed is None else JobFile(tree, name, Path("/"), text)
    found = import_configs(job, deepspeed=parse_json(config, source=source), reads_files=False)
    if found.problem is not None:
        raise found.problem
    whole = Wording(wrapped=lambda line: (f"# {line}",))  # the page wraps lines at its own width
    notes = [
        *report_lines(found.findings, written=True, wording=whole),
        *next_steps(found.findings, wording=whole),
    ]
    return {
        "job": None if found.spec is None else given_of(found.spec),
        "text": job_text(found),
        "missing": list(found.missing),
        "notes": [line.removeprefix("#").strip() for line in notes],
    }


def conversion_job(words: object) -> dict[str, Any]:
    """Return the job that `submit --convert` would queue for the conversion `words`. It runs one
    process with the daemon's interpreter. Raises BadRequest.
    """
    if not isinstance(words, list) or not all(isinstance(each, str) for each in words):
        raise BadRequest('convert: must be null or a list of texts, such as ["verify", "PATH"]')
    check_conversion(words, 1)
    refuse_relative_paths(words)
    way = option_sets(words, 1)[-1]
    return conversion_tree(words, way, 1, python=sys.executable, directory=Path("/"))
