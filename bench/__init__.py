"""Benchmarks: one command each, machine-readable results, ratios and counters rather than bare times."""
