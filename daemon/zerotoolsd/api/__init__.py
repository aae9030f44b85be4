"""Floor 3: the HTTP handlers. They know the `JobService` protocol, and nothing below it."""
