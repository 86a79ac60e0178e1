"""aorta-launch: torchrun on a list of bare machines over SSH."""

__version__ = "0.1.0"
