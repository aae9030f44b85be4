"""The interface of an engine (`engine_interface`), and the code that both engines share.

training_loss             cross-entropy and DPO
chunked_loss              cross-entropy without a tensor of all logits
router_balance            balances the experts of a mixture-of-experts model
nan_and_loss_scale        skips steps with non-finite gradients; the loss scale of fp16
learning_rate             the learning rate of each step, and the number of steps
conditional_layers        layers that only some ranks compute
load_adapter              reads the initial values of adapters from a peft directory
start_from_other_program  starts a run from a checkpoint of another program
text_generation           generates text after prompts

These modules may import `data`, `model` and `rank`.
"""
