"""Models as vectors: networks over rows of weights, and fixed features in front of a head."""
