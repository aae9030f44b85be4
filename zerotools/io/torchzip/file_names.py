"""What the names of torch files end with."""

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
