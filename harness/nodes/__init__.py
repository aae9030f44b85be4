"""Two machines, each in a network namespace of its own, that train one job while one is killed."""
