"""The interface of an engine (`protocol`), and the code that all engines share.

objective, schedule, loss_scale   the loss, the learning rate, the loss scale of fp16
preference_loss                   the loss of pairs of answers (DPO)
chunked_loss, backbone            the loss in parts, without a tensor of logits
loss_choice                       whether a job uses it
router_loss, router_bias          the balance of experts, in the ways of transformers and DeepSeek
conditional                       parts of a model that only some ranks compute
nan_policy                        which steps are skipped, and which end the run
adapter_start                     adapters that begin with the values of a peft directory
foreign_start                     the start of a run from a checkpoint of another program
decoding, generating              how a model continues prompts

It may import `data`, `model` and `rank`.
"""
