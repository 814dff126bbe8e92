"""What Turnwise claims about time and memory, measured: `python -m benchmarks` runs all, a name runs one."""
