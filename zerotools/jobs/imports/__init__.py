"""Imports of other launchers' settings into a job file: DeepSpeed's JSON, accelerate's YAML, launch
lines, and the YAML of LLaMA-Factory and axolotl."""
