"""Run `slurm.runner.node`, whose earlier name is in attempts that run under Slurm."""

import runpy

runpy.run_module("zerotoolsd.slurm.runner.node", run_name="__main__", alter_sys=True)
