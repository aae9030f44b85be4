"""What updates weights of which a rank has rows, where torch takes each to be whole."""
