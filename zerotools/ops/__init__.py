"""Layer 4: the functions that do the work of the commands, on the values of `core`."""
