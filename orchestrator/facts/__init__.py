"""The answers of the nodes as frozen values; what a node could not tell is named, never guessed."""

from orchestrator.facts.gpus import Gpu, GpuProcess, find_gpu, visible_gpus
from orchestrator.facts.node import Address, Facts, Leftover, parse_facts
from orchestrator.facts.survey import Survey

__all__ = [
    "Address",
    "Facts",
    "Gpu",
    "GpuProcess",
    "Leftover",
    "Survey",
    "find_gpu",
    "parse_facts",
    "visible_gpus",
]
