"""HTTP: the API (`api`), and the page for browsers (`web`)."""
