"""What every engine is (`protocol`), and what all engines share.

objective, schedule, loss_scale   the loss, the learning rate, the loss scale of fp16
decoding, generating              how a model continues prompts

It may import `data` and `rank`.
"""
