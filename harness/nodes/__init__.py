"""Two machines, each in a network namespace, that train one job while one of them is killed."""
