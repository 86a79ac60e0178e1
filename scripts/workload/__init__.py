"""The parts of the training script: its config, its data, its model, its metrics, its process group."""
