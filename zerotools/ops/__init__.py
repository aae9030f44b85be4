"""Layer 4: the work of commands, as functions over the core values."""
