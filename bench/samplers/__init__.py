"""What is measured beside the ranks: one file a sampler."""
