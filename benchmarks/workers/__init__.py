"""One contestant a file, each run as a process of its own; `serve` is what they share."""
