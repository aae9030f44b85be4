"""The training daemon: a durable queue of ZeRO jobs for the GPUs of one machine."""
