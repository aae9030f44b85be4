"""Import the settings of other launchers into a job file.

Read are DeepSpeed's JSON, accelerate's YAML, launch lines, and the YAML of LLaMA-Factory and
axolotl. Every reader adds claims: a claim is one source's value for a key of the job file.
"""
