"""Guarantees per client, warnings, and pages that explain them."""
