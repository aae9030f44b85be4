"""Of `zerotools verify`: its speed, its digests, and the damage that it finds."""
