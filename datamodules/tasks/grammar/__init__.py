"""The grammar task: run a prescribed depth-first search that decides whether a grammar generates a string."""
