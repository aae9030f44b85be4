"""Run `slurm.runner.batch`. Scripts in Slurm's queue may still call it by this earlier name."""

import runpy

runpy.run_module("zerotoolsd.slurm.runner.batch", run_name="__main__", alter_sys=True)
