"""Speed measurements, each beside a naive implementation in the same run. Nothing here asserts a time."""
