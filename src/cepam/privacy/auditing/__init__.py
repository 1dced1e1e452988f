"""The audit: a lower bound on epsilon by attacking the mechanism itself."""
