"""LoRA of a causal language model over Flower: only adapters travel, private and small."""
