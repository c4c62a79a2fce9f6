"""Benchmarks: each figure one JSON line, with ratios against a peer measured in the same run."""
