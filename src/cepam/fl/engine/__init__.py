"""The engine: clients, server and the rounds between them."""
