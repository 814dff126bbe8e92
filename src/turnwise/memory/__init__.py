"""What the model sees next, one idea a file."""
