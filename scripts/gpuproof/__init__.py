"""The proof of scripts/gpu_proof: launches, checks and failures on nodes with real GPUs, and the page of the figures."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
