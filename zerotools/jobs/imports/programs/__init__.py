"""Read how a training program is started: a launch line, LLaMA-Factory's YAML, or axolotl's YAML.

Each of these is converted to the arguments of Hugging Face's Trainer (`RunSettings`). The arguments
are then translated to keys of the job file.
"""
