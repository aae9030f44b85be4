"""Import the settings of other launchers into a job file.

The readers in this package read DeepSpeed's JSON, accelerate's YAML, launch lines, and the YAML of
LLaMA-Factory and axolotl. Every reader adds claims. A claim is the value that one source gives to
one key of the job file.
"""
