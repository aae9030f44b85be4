"""Floor 3: what the client, the daemon and the trainer share about jobs. Standard library only."""
