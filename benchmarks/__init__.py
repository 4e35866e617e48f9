"""Scripts that measure the package; each says in its docstring what it needs and prints."""
