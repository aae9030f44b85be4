"""How a training program was called: a launch line, LLaMA-Factory's YAML, axolotl's YAML. Each is
read as the arguments of Hugging Face's Trainer, and these as claims on the keys of a job."""
