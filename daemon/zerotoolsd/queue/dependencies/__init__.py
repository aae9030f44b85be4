"""The jobs after which others start, as the database has them."""
