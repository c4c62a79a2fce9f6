"""Benchmarks. Each figure is one JSON line, with ratios to a peer measured in the same run."""
