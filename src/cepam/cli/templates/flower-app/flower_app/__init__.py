"""Federated training with differential privacy for every record."""
