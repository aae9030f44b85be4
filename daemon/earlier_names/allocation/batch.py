"""Run `slurm.runner.batch`, whose earlier name is in scripts that wait in the queue of Slurm."""

import runpy

runpy.run_module("zerotoolsd.slurm.runner.batch", run_name="__main__", alter_sys=True)
