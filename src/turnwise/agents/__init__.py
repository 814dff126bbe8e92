"""How an episode is played, one way a file."""
