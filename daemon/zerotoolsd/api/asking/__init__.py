"""What every request passes before its handler.

gate   who is gone or asks too often goes no further
peer   who asks: the kernel's word, or a token's
asked  whether they may
turns  how many requests of one user are answered together
"""
