"""Floor 3: what users ask for, each a few dozen lines over the core values."""
