"""Layer 0: values. Standard library only, no I/O."""
