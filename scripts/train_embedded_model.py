"""Train the embedded default: a tokenizer, a small target model and a draft of a tenth of its size.

    python scripts/train_embedded_model.py [--output inferdoc/data] [--steps 600]

All text comes from the training split of ``inferdoc.data.mixture``. The run is seeded, so it repeats with the same
number of threads on the same machine and library versions; other processors round differently, and the weights then
differ slightly.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
import transformers
from copying_circuit import start_copying
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from inferdoc.data.mixture import mixture
from inferdoc.data.templates import Split

VOCABULARY = 2048
PAD, BOS, EOS, END = "<|pad|>", "<|bos|>", "<|eos|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
SPECIAL = 7
# Words with their space, digits in pairs (so that a clock time is five tokens), runs of punctuation, white space.
WORDS = r" ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
WINDOW = 1024
DRILL_WINDOW = 256
DRILL_EVERY = 16
"""Every how many windows of text one is replaced by a copying drill."""
CONTEXT = 4096


@dataclass(frozen=True)
class Shape:
    """The dimensions of one of the two models."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


TARGET = Shape(hidden=256, intermediate=704, layers=3, heads=8, kv_heads=2, head_dim=32)
DRAFT = Shape(hidden=80, intermediate=192, layers=2, heads=4, kv_heads=2, head_dim=16)


def train_tokenizer(texts: Iterator[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE over `texts`; it adds no tokens by itself, the chat template writes the only BOS."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BOS, EOS, *ROLES, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[*ROLES, END],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def rendered(split: Split, seed: int | str) -> Iterator[str]:
    """Texts of the mixture as the models see them, with their special tokens."""
    for sample in mixture(split, seed):
        if isinstance(sample, str):
            yield f"{BOS}{sample}{EOS}"
        else:
            yield BOS + "".join(f"<|{message['role']}|>{message['content']}{END}" for message in sample)


def pack(tokenizer: PreTrainedTokenizerFast, texts: Iterator[str], windows: int) -> tuple[Tensor, int]:
    """Token ids of `texts`, one behind the other, cut into [windows, WINDOW] int64; and how many texts that took."""
    ids: list[int] = []
    used = 0
    while len(ids) < windows * WINDOW:
        ids.extend(tokenizer.backend_tokenizer.encode(next(texts)).ids)
        used += 1
    return torch.tensor(ids[: windows * WINDOW]).view(windows, WINDOW), used


def drill(count: int, length: int, seed: int) -> Tensor:
    """Random tokens [count, length] that repeat with a period of an eighth to a half of the length."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        period = int(torch.randint(length // 8, length // 2 + 1, (1,), generator=generator))
        ids = torch.randint(SPECIAL, VOCABULARY, (period,), generator=generator)
        rows.append(ids.repeat(length // period + 1)[:length])
    return torch.stack(rows)


def build(shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A Llama of `shape` that has not been trained."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=CONTEXT,
        rope_theta=500_000.0,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    start_copying(model, seed)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(END)],
        do_sample=False,
    )
    return model


def train(
    model: LlamaForCausalLM,
    windows: Tensor,
    *,
    batch: int,
    rate: float,
    name: str,
    watched: Tensor,
    teacher: LlamaForCausalLM | None = None,
) -> float:
    """One pass over `windows`; matrices by Muon, the rest by AdamW. Returns the mean loss of the last tenth in nats.

    With a `teacher` the model learns the teacher's probabilities instead of the text. The loss on `watched`, which is
    never trained on, is printed now and then.
    """
    matrices = [weight for key, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in key]
    rest = [weight for key, weight in model.named_parameters() if weight.ndim != 2 or "embed" in key]
    optimizers = [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rate, weight_decay=0.0, betas=(0.9, 0.98)),
    ]
    steps = len(windows) // batch
    warmup = max(1, steps // 20)

    def factor(step: int) -> float:
        ahead = (step - warmup) / max(1, steps - warmup)
        return (step + 1) / warmup if step < warmup else 0.02 + 0.98 * (1 + math.cos(math.pi * ahead)) / 2

    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, factor) for optimizer in optimizers]
    losses: list[float] = []
    model.train()
    for step in range(steps):
        ids = windows[step * batch : (step + 1) * batch]
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, _wanted(ids, teacher))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if (step + 1) % 50 == 0 or step + 1 == steps:
            recent = losses[-50:]
            held_out = predict(model, watched)[0]
            print(f"{name} {step + 1}/{steps} loss {sum(recent) / len(recent):.3f} held-out {held_out:.3f}", flush=True)
    model.eval()
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


@torch.no_grad()
def _wanted(ids: Tensor, teacher: LlamaForCausalLM | None) -> Tensor:
    """What should follow each position of `ids`: a token id, or a row of the teacher's probabilities."""
    if teacher is None:
        return ids[:, 1:].flatten()
    probabilities: Tensor = teacher(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1).softmax(-1)
    return probabilities


@torch.inference_mode()
def predict(model: LlamaForCausalLM, windows: Tensor) -> tuple[float, Tensor]:
    """Mean loss in nats over `windows`, and the greedy next tokens [windows, WINDOW - 1]."""
    loss, tokens = 0.0, []
    for ids in windows:
        logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0]
        loss += torch.nn.functional.cross_entropy(logits, ids[1:]).item()
        tokens.append(logits.argmax(-1))
    return loss / len(windows), torch.stack(tokens)


def main() -> None:
    """Train both models and write them, the tokenizer and ``training.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent.parent / "inferdoc" / "data")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--drill-steps", type=int, default=80, help="steps of copying drills before the text")
    parser.add_argument("--batch", type=int, default=4, help=f"windows of {WINDOW} tokens in a step")
    parser.add_argument("--rate", type=float, default=4e-3, help="peak learning rate of the target")
    parser.add_argument("--draft-rate", type=float, default=8e-3, help="peak learning rate of the draft")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="the shipped weights were trained with 1")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    tokenizer = train_tokenizer(itertools.islice(rendered(Split.TRAIN, options.seed), 2000))
    windows, train_texts = pack(tokenizer, rendered(Split.TRAIN, options.seed), options.steps * options.batch)
    windows[::DRILL_EVERY] = drill(len(windows[::DRILL_EVERY]), WINDOW, options.seed)
    drill_batch = options.batch * WINDOW // DRILL_WINDOW
    drills = drill(options.drill_steps * drill_batch, DRILL_WINDOW, options.seed + 1)
    held_out, _ = pack(tokenizer, rendered(Split.HELDOUT, "evaluation"), 64)

    report = {}
    guesses = {}
    teacher = None
    for name, shape, rate in (("target", TARGET, options.rate), ("draft", DRAFT, options.draft_rate)):
        model = build(shape, tokenizer, options.seed)
        how = {"rate": rate, "name": name, "watched": held_out[:8]}
        train(model, drills, batch=drill_batch, **how)
        train_loss = train(model, windows, batch=options.batch, teacher=teacher, **how)
        teacher = model
        loss, guesses[name] = predict(model, held_out)
        folder = options.output / name
        model.save_pretrained(folder)
        (folder / "model.safetensors").chmod(0o644)
        tokenizer.save_pretrained(folder)
        report[name] = {
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "train_loss_nats": round(train_loss, 4),
            "held_out_loss_nats": round(loss, 4),
            "held_out_perplexity": round(math.exp(loss), 3),
            "held_out_accuracy": round((guesses[name] == held_out[:, 1:]).float().mean().item(), 4),
        }
    agreement = (guesses["draft"] == guesses["target"]).float().mean().item()
    (options.output / "training.json").write_text(
        json.dumps(
            {
                "seed": options.seed,
                "threads": options.threads,
                "steps": options.steps,
                "drill_steps": options.drill_steps,
                "tokens_per_step": options.batch * WINDOW,
                "train_texts": train_texts,
                "train_tokens": options.steps * options.batch * WINDOW,
                "held_out_tokens": held_out.numel(),
                **report,
                "draft_target_greedy_agreement": round(agreement, 4),
                "versions": {
                    "python": platform.python_version(),
                    "torch": torch.__version__,
                    "transformers": transformers.__version__,
                    "tokenizers": tokenizers.__version__,
                },
            },
            indent=2,
        )
        + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
