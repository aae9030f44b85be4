"""The HTTP handlers. They use the `JobService` protocol, and no lower layer."""
