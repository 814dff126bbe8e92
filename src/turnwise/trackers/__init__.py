"""Who else hears the figures of a step, one service a file."""
