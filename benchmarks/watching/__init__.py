"""What watching the machine costs, and what it is good for."""
