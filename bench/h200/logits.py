#!/usr/bin/env python3
"""Logits of transformers, for TestLogits of internal/backend/cuda: float32 as the truth, and what its bf16 makes of it on the same GPU.

    logits.py FOLDER

FOLDER gets a folder for llama, qwen2 and qwen3 each: a model of random weights, tokens.i32 (a text of 300), truth.f32 and bf16.f32
(logits [300, vocabulary] of each position). Needs torch and transformers.
"""
import json, sys
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from randommodel import tokenizer

out = sys.argv[1]
common = dict(vocab_size=4096, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2,
              max_position_embeddings=2048, initializer_range=0.06, rms_norm_eps=1e-6, attn_implementation="eager")
configs = {"llama": LlamaConfig(**common, tie_word_embeddings=False, rope_theta=5e5), "qwen2": Qwen2Config(**common, tie_word_embeddings=True),
           "qwen3": Qwen3Config(**common, tie_word_embeddings=True, head_dim=64)}
torch.backends.cuda.matmul.allow_tf32 = False
for name, config in configs.items():
    torch.manual_seed(7)
    folder = f"{out}/{name}"
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n.endswith("bias"):
                p.normal_(0, 0.5)
            elif "norm" in n:
                p.copy_(1 + 0.2 * torch.randn_like(p))
    model.to(torch.bfloat16).save_pretrained(folder)
    tok, end = tokenizer(4096, None)
    json.dump(tok, open(f"{folder}/tokenizer.json", "w"))
    json.dump({"eos_token": "<|end|>"}, open(f"{folder}/tokenizer_config.json", "w"))
    tokens = torch.randint(0, 4000, (1, 300), generator=torch.Generator().manual_seed(1)).cuda()
    with torch.no_grad():
        # Read again: rounding a model rounds its rotary frequencies too, which are float32 in both.
        low, truth = (AutoModelForCausalLM.from_pretrained(folder, dtype=d, attn_implementation="eager").cuda().eval()(tokens).logits.float()
                      for d in (torch.bfloat16, torch.float32))
    tokens.to(torch.int32).cpu().numpy().tofile(f"{folder}/tokens.i32")
    truth.cpu().numpy().tofile(f"{folder}/truth.f32")
    low.cpu().numpy().tofile(f"{folder}/bf16.f32")
    print(name, "transformers' bf16 is off by", ((low - truth).norm() / truth.norm()).item())
