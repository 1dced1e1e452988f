"""The client privacy policy and the account of a node."""
