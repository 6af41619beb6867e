"""The tasks themselves: generators, reference executors and prompt templates, in plain Python and NumPy."""
