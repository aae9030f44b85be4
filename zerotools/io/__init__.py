"""Files, object stores and their containers as bytes. No format of a checkpoint is known here.

files        files of this machine: opened safely, stamped, read and written at offsets
stores       checkpoints in object stores, as paths
ssh          other machines
telemetry    the reports of a run while it trains
output       an output directory: staging, journal, marker
numeric      elements of tensors: casts, gathering, comparison
torchzip     torch.save archives
distcp       `.metadata` and `.distcp` files of torch.distributed.checkpoint
huggingface  model directories of Hugging Face
"""
