"""What every engine is (`protocol`), and what all engines share.

objective, schedule, loss_scale   the loss, the learning rate, the loss scale of fp16
preference_loss                   the loss of pairs of answers (DPO)
chunked_loss, base_model          the loss in parts, without a tensor of logits
loss_choice                       whether a job wants it so
router_loss, router_bias          the balance of experts, as transformers and as DeepSeek have it
conditional                       parts of a model that one rank computes and another does not
divergence                        which steps are skipped, and which end the run
adapter_start                     adapters that begin as a directory of peft has them
foreign_start                     where a run goes on from a checkpoint of another program
decoding, generating              how a model continues prompts

It may import `data`, `model` and `rank`.
"""
