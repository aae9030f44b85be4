"""From a Checkpoint to torch files: a Hugging Face directory, or one file to resume training from.

Imports `schema`.

lay_out               a model directory that `torch.load` and `from_pretrained` read
lay_out_other_format  one file with the optimizer's state, from which a plain torch run resumes
thin                  the files without the optimizers
one_file              the layout of one archive
weights_only          the values that `torch.load(weights_only=True)` reads besides tensors
"""
