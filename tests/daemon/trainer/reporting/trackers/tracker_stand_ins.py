"""Packages that take the place of wandb and MLflow: what they are told is a line of a file each.

They have what `tracker_program` calls of wandb 0.31 and mlflow-skinny 3.17, with the same names and
arguments; `test_tracker_program` runs the same against the real ones where they are installed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TOLD = "TRACKER_STAND_IN_TOLD"
"""The variable that names the file."""
TROUBLE = "TRACKER_STAND_IN_TROUBLE"
"""The variable that says what goes wrong: `online`, `init`, `log` or `hang`."""

_TELLING = """
import json, os, time
TROUBLE = os.environ.get("TRACKER_STAND_IN_TROUBLE", "")
def tell(what, **said):
    with open(os.environ["TRACKER_STAND_IN_TOLD"], "a") as file:
        file.write(json.dumps({"what": what, **said}) + "\\n")
def told(what):
    try:
        with open(os.environ["TRACKER_STAND_IN_TOLD"]) as file:
            return [tree for tree in map(json.loads, file) if tree["what"] == what]
    except FileNotFoundError:
        return []
"""
_WANDB = """
class Settings:
    def __init__(self, *, console, disable_git, save_code, init_timeout):
        pass
class Config:
    def update(self, tree, *, allow_val_change):
        pass
class Run:
    def __init__(self, resumed):
        self.resumed, self.config = resumed, Config()
        self.summary = {name: tree[name] for tree in told("log") for name in tree if resumed}
    def define_metric(self, name, *, step_metric=None, step_sync=None):
        tell("metric", name=name, over=step_metric)
    def log(self, fields):
        if TROUBLE == "log":
            raise RuntimeError(f"cannot log with {os.environ.get('WANDB_API_KEY')}")
        while TROUBLE == "hang":
            time.sleep(60)
        tell("log", **fields)
    def finish(self, *, exit_code):
        tell("finish", exit_code=exit_code, ended=self.summary["ended"])
def init(*, project, entity, id, name, resume, dir, config, settings, mode):
    if TROUBLE == "init" or (TROUBLE == "online" and mode == "online"):
        raise ConnectionError(f"no server takes {os.environ.get('WANDB_API_KEY')}")
    before = mode == "online" and bool(told("init"))
    tell("init", project=project, entity=entity, id=id, mode=mode, resume=resume, config=config)
    return Run(before)
"""
_ENTITIES = """
class Metric:
    def __init__(self, key, value, timestamp, step):
        self.key, self.value, self.timestamp, self.step = key, value, timestamp, step
class Param:
    def __init__(self, key, value):
        self.key, self.value = key, value
"""
_CLIENT = """
from types import SimpleNamespace as Some
class MlflowClient:
    def __init__(self, tracking_uri):
        tell("client", uri=tracking_uri)
    def get_experiment_by_name(self, name):
        found = any(made["name"] == name for made in told("experiment"))
        return Some(experiment_id="7") if found else None
    def create_experiment(self, name):
        tell("experiment", name=name)
        return "7"
    def search_runs(self, experiment_ids, filter_string, max_results):
        wanted = filter_string.split("'")[1]
        params = {name: value for tree in told("params") for name, value in tree["params"].items()}
        return [self._run(params) for tree in told("run") if tree["tag"] == wanted][:1]
    def create_run(self, experiment_id, *, tags, run_name):
        tell("run", tag=tags["zerotools.run"], name=run_name)
        return self._run({})
    def _run(self, params):
        names = {name for tree in told("log") for name in tree} - {"what", "step"}
        return Some(info=Some(run_id="r1"), data=Some(params=params, metrics=dict.fromkeys(names)))
    def get_metric_history(self, run_id, key):
        return [Some(step=tree["step"]) for tree in told("log") if key in tree]
    def update_run(self, run_id, status):
        tell("update", status=status)
    def log_batch(self, run_id, metrics=(), params=()):
        if params:
            tell("params", params={param.key: param.value for param in params})
        for metric in metrics:
            tell("log", step=metric.step, **{metric.key: metric.value})
    def set_terminated(self, run_id, status):
        tell("finish", status=status)
"""


def install(directory: Path) -> Path:
    """Make the packages below `directory`; what PYTHONPATH must name."""
    mlflow = directory / "mlflow"
    mlflow.mkdir(parents=True)
    (directory / "wandb.py").write_text(_TELLING + _WANDB)
    (mlflow / "__init__.py").write_text("")
    (mlflow / "entities.py").write_text(_ENTITIES)
    (mlflow / "tracking.py").write_text(_TELLING + _CLIENT)
    return directory


def told(path: Path, what: str) -> list[dict[str, Any]]:
    """What the packages were told, of one kind."""
    trees = [json.loads(line) for line in path.read_text().splitlines()]
    return [tree for tree in trees if tree.pop("what") == what]
