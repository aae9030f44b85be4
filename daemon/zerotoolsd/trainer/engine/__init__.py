"""The interface of an engine (`protocol`), and the code that both engines share.

training_loss          cross-entropy and DPO
chunked_loss           cross-entropy without a tensor of all logits
router_balance         balance of the experts of a mixture: auxiliary loss, or bias
nan_and_loss_scale     steps with non-finite gradients, and the loss scale of fp16
schedule               learning rate and number of steps
conditional_layers     layers that only some ranks compute
load_adapter           initial values of adapters from a peft directory
foreign_start          the start of a run from a checkpoint of another program
text_generation        generates text after prompts

These modules may import `data`, `model` and `rank`.
"""
