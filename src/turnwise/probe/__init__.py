"""The zero-shot check: what a model does in its episodes before any training, and what to mend first."""
