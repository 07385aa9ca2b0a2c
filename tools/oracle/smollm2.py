"""Logits and greedy tokens of SmolLM2-135M-Instruct as transformers computes them in float32 from the GGUF file.

Needs: python 3.11, torch==2.9.0 (CPU), transformers==5.24.0, gguf==0.19.0, accelerate==1.15.0, numpy==2.4.6.
Usage: HF_HUB_OFFLINE=1 python smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf OUT_DIR
(the file: tools/fetch; OUT_DIR: internal/model/testdata). About five minutes on two cores.

Writes smollm2.json and smollm2-row.f32:
  prompts[]: name, chat (rendered by the model's template), text, ids
    rows[]: position, max (largest |logit|), top: [id, logit] × 64 in descending order, columns: logits of `columns`
    greedy: 64 tokens, end tokens not heeded (20 of the prompts; absent in the others)
    margins: difference of the two largest logits at each greedy step
    maxima: largest |logit| at each greedy step
  columns: the sampled vocabulary columns, ascending
  full: index of the prompt whose last row is in smollm2-row.f32 whole (little endian float32, by token id)
"""

import json
import os
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

GREEDY_TOKENS = 64
TOP = 64
COLUMNS = 256

# name, chat, greedy, text
PROMPTS = [
    ("capital", True, True, "What is the capital of France?"),
    ("haiku", True, True, "Write a haiku about the sea."),
    ("sum", True, True, "What is 17 plus 25?"),
    ("primes", True, True, "List the first five prime numbers."),
    ("photosynthesis", True, True, "Explain photosynthesis to a child in two sentences."),
    ("translate", True, True, "Translate 'good morning' into Spanish."),
    ("python", True, True, "Write a Python function that reverses a string."),
    ("recipe", True, True, "How do I boil an egg?"),
    ("unicode", True, True, "Was bedeutet „Straßenbahn“? 日本語では? Ответь кратко. 🚋"),
    ("empty-user", True, True, ""),
    ("newlines", True, True, "line one\n\n\nline two\r\n\tindented\n"),
    ("story", False, True, "Once upon a time, in a small village by the river,"),
    ("code", False, True, "def fibonacci(n):\n    if n < 2:\n        return n\n"),
    ("numbers", False, True, "1, 2, 3, 5, 8, 13, 21, 34,"),
    ("french", False, True, "Le chat est assis sur"),
    ("one-token", False, True, "The"),
    ("json", False, True, '{"name": "Ada", "born": 1815, "languages": ["English",'),
    ("repeat", False, True, "red blue green red blue green red blue"),
    ("markup", False, True, "<html>\n<head><title>Home</title></head>\n<body>"),
    ("base", True, True, None),  # 704 tokens
    ("control", False, False, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
    ("greek", False, False, "Η θάλασσα είναι"),
    ("spaces", False, False, "a          b     c  "),
    ("letters", False, False, "a" * 65),
]

SENTENCES = [
    "Worker {i} keeps the word {w} in drawer {j} of cabinet {k}.",
    "On day {j} the river rose {k} centimetres and the {w} gate stayed shut.",
    "Note {i}: ask {w} about the {j} letters before page {k}.",
]
WORDS = "amber birch cedar delta ember fjord grove harbor island juniper".split()


def long_text(tokenizer, target):
    """A text whose chat rendering has exactly target tokens."""
    text, i = "", 0
    while True:
        s = SENTENCES[i % 3].format(i=i, j=(i * 7) % 31, k=(i * 13) % 97, w=WORDS[(i * 3) % 10])
        if len(chat_ids(tokenizer, text + s + " ")) > target:
            break
        text, i = text + s + " ", i + 1
    while len(chat_ids(tokenizer, text)) < target:
        text += "ok "
    ids = chat_ids(tokenizer, text)
    assert len(ids) == target, len(ids)
    return text


def chat_text(tokenizer, text):
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )


def chat_ids(tokenizer, text):
    return tokenizer(chat_text(tokenizer, text), add_special_tokens=False)["input_ids"]


def row(logits, position, columns):
    values, ids = torch.topk(logits, TOP)
    return {
        "position": position,
        "max": float(logits.abs().max()),
        "top": [[int(i), float(v)] for i, v in zip(ids, values)],
        "columns": [float(v) for v in logits[columns]],
    }


@torch.no_grad()
def main(path, out):
    torch.set_num_threads(2)
    folder, name = os.path.split(os.path.abspath(path))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    model.eval()
    vocab = model.config.vocab_size
    columns = sorted(np.random.default_rng(20).choice(vocab, COLUMNS, replace=False).tolist())
    prompts, full = [], None
    for n, (label, chat, greedy, text) in enumerate(PROMPTS):
        if text is None:
            text = long_text(tokenizer, 704)
        ids = chat_ids(tokenizer, text) if chat else tokenizer(text, add_special_tokens=False)["input_ids"]
        result = model(torch.tensor([ids]), use_cache=True)
        logits = result.logits[0]
        positions = [len(ids) - 1]
        if len(ids) > 512:
            positions = [0, 1, 15, 16, 63, 64, 127, 300, 511, 512, len(ids) - 1]
        entry = {"name": label, "chat": chat, "text": text, "ids": ids}
        entry["rows"] = [row(logits[p], p, columns) for p in positions]
        if label == "capital":
            full = n
            logits[-1].numpy().astype("<f4").tofile(os.path.join(out, "smollm2-row.f32"))
        if greedy:
            tokens, margins, maxima = [], [], []
            step, past = logits[-1], result.past_key_values
            for _ in range(GREEDY_TOKENS):
                top = torch.topk(step, 2).values
                margins.append(round(float(top[0] - top[1]), 6))
                maxima.append(round(float(step.abs().max()), 4))
                tokens.append(int(step.argmax()))
                result = model(torch.tensor([[tokens[-1]]]), past_key_values=past, use_cache=True)
                step, past = result.logits[0, -1], result.past_key_values
            entry.update(greedy=tokens, margins=margins, maxima=maxima)
            print(label, len(ids), "min margin", min(margins), repr(tokenizer.decode(tokens))[:100], flush=True)
        prompts.append(entry)
    document = {
        "model": name,
        "torch": torch.__version__,
        "transformers": __import__("transformers").__version__,
        "vocab": vocab,
        "columns": columns,
        "full": full,
        "prompts": prompts,
    }
    with open(os.path.join(out, "smollm2.json"), "w") as f:
        json.dump(document, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
