"""The paper's CNN on MNIST over Flower, with updates that are private and small."""
