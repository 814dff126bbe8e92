"""How credit is assigned along time, one idea a file."""
