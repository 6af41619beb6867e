"""Our own executor: it runs the bytecode of the Python that made it, with a state that is plain data and text."""
