"""Composition over rounds: privacy-loss distributions, the accountant, calibration."""
