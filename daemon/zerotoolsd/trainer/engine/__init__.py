"""What every engine is (`protocol`), and what all engines share.

objective, schedule, loss_scale   the loss, the learning rate, the loss scale of fp16
divergence                        which steps are skipped, and which end the run
decoding, generating              how a model continues prompts

It may import `data` and `rank`.
"""
