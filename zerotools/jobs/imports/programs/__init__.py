"""Read how a training program is called: a launch line, LLaMA-Factory's YAML, axolotl's YAML.

Each is converted to the arguments of Hugging Face's Trainer (a `Recipe`), and these are claims on
the keys of a job.
"""
