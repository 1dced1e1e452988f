"""Aggregators: what lies between the clients' updates and the server's step, and what it is charged."""
