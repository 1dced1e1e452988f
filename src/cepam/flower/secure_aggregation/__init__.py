"""Secure aggregation over Flower: a strategy, its client, and the messages between them."""
