"""Models as vectors of weights, and the networks that turn them into gradients and scores."""
