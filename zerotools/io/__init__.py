"""Bytes of files and of objects in stores, and the containers that they form. Formats of
checkpoints are in another layer.

files        files of this machine: opened safely, checked for changes, read and written at offsets
stores       checkpoints in object stores, as paths
ssh          other machines
telemetry    the reports of a run while it trains
output       an output directory: its staging directory, journal and marker
numeric      elements of tensors: casts, gathering, comparison
torchzip     torch.save archives
distcp       `.metadata` and `.distcp` files of torch.distributed.checkpoint
huggingface  model directories of Hugging Face
"""
