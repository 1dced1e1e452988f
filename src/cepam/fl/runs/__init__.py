"""Runs on disk: training that survives a kill, summaries, comparisons, figures."""
