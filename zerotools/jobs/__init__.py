"""Layer 4: the code for jobs that client, daemon and trainer share. Standard library only."""
