"""Run `slurm.runner.node`. Attempts under Slurm may still call it by this earlier name."""

import runpy

runpy.run_module("zerotoolsd.slurm.runner.node", run_name="__main__", alter_sys=True)
