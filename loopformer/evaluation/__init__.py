"""Evaluation: outcomes of a model on a benchmark, their summary with intervals, and the report."""
