"""Jobs that wait for a time or for other jobs, until their condition is met."""
