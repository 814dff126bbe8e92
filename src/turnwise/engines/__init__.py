"""Where tokens are sampled, one backend a file."""
