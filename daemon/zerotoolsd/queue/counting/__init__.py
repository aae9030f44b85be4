"""What each user has in the queue, counted."""
