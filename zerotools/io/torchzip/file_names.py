"""The endings of torch files' names."""

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
