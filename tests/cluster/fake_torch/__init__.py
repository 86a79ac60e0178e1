"""Stands where torch.distributed is in an environment that has no torch: `run` starts ranks as torchrun does."""
