"""Hugging Face Trainer on any number of processes and nodes: a small Llama from a config object, data made here.

Nothing is downloaded. Every node keeps checkpoints, and the next start goes on from the newest that all hold.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.utils.logging import disable_progress_bar

COMPLETE = "complete"
"""A file that says that every process had written its part of a checkpoint."""


def build_data(samples: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Build sequences that count on in steps of 1 to 4, from 0 again behind 28; the model itself shifts the labels."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(29, (samples, 1), generator=generator)
    tokens = (first + torch.randint(1, 5, (samples, 1), generator=generator) * torch.arange(16)) % 29
    return [{"input_ids": sequence, "labels": sequence} for sequence in tokens]


def gather(value: Any) -> list[Any]:
    """Give every process the value of each."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


class WholeCheckpoints(TrainerCallback):
    """Make the checkpoint of each node whole, and say so in a file.

    Even with save_on_each_node, Trainer writes the weights on the main node alone (seen with transformers 5.24), and
    no other node with a disk of its own could go on from its checkpoint.
    """

    def on_save(self, args: TrainingArguments, state: Any, _control: Any, *, model: Any, **_: Any) -> None:
        """Write what is missing."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if args.should_save and not (folder / "model.safetensors").exists():
            save_model(model, str(folder / "model.safetensors"))
        gather(None)  # all have written
        (folder / COMPLETE).touch()


def find_checkpoint(folder: Path) -> str | None:
    """Find the newest checkpoint that is whole on every node's disk; None when there is none."""
    mine = {int(path.parent.name.rpartition("-")[2]) for path in folder.glob(f"checkpoint-*/{COMPLETE}")}
    held = gather(mine)
    common = set.intersection(*held)
    if set.union(*held) != common:
        print(f"not every node holds the same checkpoints: {held}", flush=True)
    return str(folder / f"checkpoint-{max(common)}") if common else None


def build_arguments(folder: Path, steps: int, *, shared_disk: bool) -> TrainingArguments:
    """Say how to train."""
    return TrainingArguments(
        output_dir=str(folder),
        # Without use_cpu, processes of a machine without a GPU do not find each other, and each trains alone.
        use_cpu=not torch.cuda.is_available(),
        save_on_each_node=not shared_disk,
        max_steps=steps,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        logging_steps=20,
        save_steps=20,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )


def train(arguments: TrainingArguments) -> None:
    """Train to the end, from the newest checkpoint on."""
    if arguments.world_size != int(os.environ.get("WORLD_SIZE", "1")):
        raise SystemExit(f"Trainer sees {arguments.world_size} processes of {os.environ['WORLD_SIZE']}")
    set_seed(1)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = LlamaConfig(vocab_size=29, hidden_size=64, intermediate_size=128, num_hidden_layers=2, **heads)
    model, data, held_out = LlamaForCausalLM(config), build_data(4096, seed=1), build_data(250, seed=2)
    # Not by trainer.evaluate(): called before train(), it makes every process train alone (transformers 5.24).
    tokens = torch.stack([sequence["labels"] for sequence in held_out])
    first = model(input_ids=tokens, labels=tokens).loss.item()
    callbacks = [WholeCheckpoints()]
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=held_out, callbacks=callbacks)
    checkpoint = find_checkpoint(Path(arguments.output_dir))
    if trainer.is_world_process_zero():
        print(f"starts from {Path(checkpoint).name if checkpoint else 'the beginning'}", flush=True)
    trainer.train(resume_from_checkpoint=checkpoint)
    last = trainer.evaluate()["eval_loss"]
    sums = gather(sum(weights.detach().double().sum().item() for weights in model.parameters()))
    if len(set(sums)) > 1:
        raise RuntimeError(f"the processes hold different weights: {sums}")
    if trainer.is_world_process_zero():
        print(f"loss {first:.4f} -> {last:.4f}, the same on all {len(sums)} ranks", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-steps", type=int, default=100)
    parser.add_argument("--output-dir", type=Path, default=Path("~/.aorta/checkpoints/trainer_train"))
    parser.add_argument("--shared-disk", action="store_true", help="all nodes see one disk: the main node alone saves")
    words = parser.parse_args()
    disable_progress_bar()
    train(build_arguments(words.output_dir.expanduser(), words.max_steps, shared_disk=words.shared_disk))
