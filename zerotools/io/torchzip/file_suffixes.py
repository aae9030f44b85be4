"""The endings of the names of torch files."""

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
