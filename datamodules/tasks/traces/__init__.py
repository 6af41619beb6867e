"""Execution traces of real Python: a guarded tracer, states an executor can resume from, renderings, data, scores."""
