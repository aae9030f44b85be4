"""Layer 1: bytes. Knows files, not formats."""
