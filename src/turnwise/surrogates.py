"""Text that no tokenizer, file or wire takes."""


def encodable(text: str) -> str:
    """Half of a surrogate pair, which JSON can spell, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
