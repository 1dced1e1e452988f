"""Sums of known updates through a real SuperLink."""
