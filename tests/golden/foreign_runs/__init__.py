"""Other programs that train, save, and train on: what a job that goes on from them is held to."""
