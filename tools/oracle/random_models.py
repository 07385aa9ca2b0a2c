"""Small random llama, qwen2 and qwen3 models of odd shapes, and their logits as transformers computes them in float32.

Needs: python 3.11, torch==2.9.0 (CPU), transformers==5.24.0, tokenizers==0.23.3, gguf==0.19.0, safetensors==0.8.0,
numpy==2.4.6.
Usage: HF_HUB_OFFLINE=1 python random_models.py OUT_DIR (internal/model/testdata/random). Seconds.

Each model is written twice from the same numbers: a Hugging Face folder NAME/ and NAME.gguf, the latter laid out as
llama.cpp's converter does (for llama: rows of Q and K permuted, llama3 scaling as rope_freqs.weight).
random.json: models[]: name, vocab, sequences[]: tokens, rows (positions whose logits are kept).
NAME.f32: the rows of all sequences in order, [rows, vocab] little endian float32.
"""

import json
import math
import os
import shutil
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# name, classes, dtype, seed, config, form of config.json's rope keys (5: as this transformers; 4: rope_scaling; 3: its "type")
MODELS = [
    ("llama-gqa3", LlamaConfig, LlamaForCausalLM, torch.float32, 5, dict(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, intermediate_size=56,
        vocab_size=300, tie_word_embeddings=False, rms_norm_eps=1e-5)),
    ("llama3-bias", LlamaConfig, LlamaForCausalLM, torch.bfloat16, 4, dict(
        hidden_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, head_dim=16,
        intermediate_size=72, vocab_size=331, tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
        rms_norm_eps=1e-6, rope_parameters=LLAMA3)),
    ("llama-linear", LlamaConfig, LlamaForCausalLM, torch.float16, 3, dict(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=80,
        vocab_size=300, tie_word_embeddings=True, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})),
    ("qwen2-tied", Qwen2Config, Qwen2ForCausalLM, torch.bfloat16, 4, dict(
        hidden_size=56, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=100,
        vocab_size=401, tie_word_embeddings=True, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    ("qwen2-untied", Qwen2Config, Qwen2ForCausalLM, torch.float32, 5, dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=36,
        vocab_size=299, tie_word_embeddings=False, rms_norm_eps=1e-6)),
    ("qwen3-tied", Qwen3Config, Qwen3ForCausalLM, torch.bfloat16, 5, dict(
        hidden_size=40, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
        intermediate_size=90, vocab_size=311, tie_word_embeddings=True, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})),
    ("qwen3-bias", Qwen3Config, Qwen3ForCausalLM, torch.bfloat16, 5, dict(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        intermediate_size=64, vocab_size=512, tie_word_embeddings=False, attention_bias=True, rms_norm_eps=1e-6)),
]

LENGTHS = [1, 2, 17, 33, 150]
TEMPLATE = "{% for m in messages %}{{ '<s>' + m['role'] + ': ' + m['content'] + '</s>' }}{% endfor %}{{ '<s>assistant: ' if add_generation_prompt }}"


def randomise(model, generator):
    """Numbers large enough that attention is far from uniform and no tensor could be dropped unnoticed."""
    for name, p in model.named_parameters():
        if "norm" in name:
            p.data = 0.5 + torch.rand(p.shape, generator=generator)
        elif name.endswith(".bias"):
            p.data = 0.5 * torch.randn(p.shape, generator=generator)
        elif "embed_tokens" in name:
            p.data = torch.randn(p.shape, generator=generator)
        else:
            p.data = torch.randn(p.shape, generator=generator) * (1.5 / math.sqrt(p.shape[1]))


def byte_tokenizer():
    """Byte-level BPE (GPT-2) without merges but two, and the control tokens <s> and </s>."""
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("h", "e"), ("l", "l")]
    for a, b in merges:
        vocab[a + b] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer, merges


def write_folder(folder, model, dtype, form, tokenizer):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    tensors = {k: v.to(dtype).contiguous() for k, v in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    config.pop("transformers_version", None)
    if form < 5:
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        if form == 3:
            rope["type"] = rope.pop("rope_type")
        config["rope_scaling"] = None if rope.get("rope_type") == "default" else rope
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1, sort_keys=True)
        f.write("\n")
    tokenizer.save(os.path.join(folder, "tokenizer.json"), pretty=False)
    if config["model_type"] != "qwen2":  # qwen2's stay without a template and without a list of end tokens
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
            json.dump({"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>"}, f)
        with open(os.path.join(folder, "generation_config.json"), "w") as f:
            json.dump({"eos_token_id": [259, 258]}, f)


def permute(t, heads):
    """Half-split to interleaved pairs, as LlamaModel.permute of convert_hf_to_gguf.py."""
    return t.reshape(heads, 2, t.shape[0] // heads // 2, *t.shape[1:]).swapaxes(1, 2).reshape(t.shape)


def rope_factors(c):
    r = c.rope_parameters
    d = c.head_dim or c.hidden_size // c.num_attention_heads
    factors = []
    for i in range(0, d, 2):
        wavelength = 2 * math.pi * r["rope_theta"] ** (i / d)
        turns = r["original_max_position_embeddings"] / wavelength
        if turns > r["high_freq_factor"]:
            factors.append(1.0)
        elif turns < r["low_freq_factor"]:
            factors.append(r["factor"])
        else:
            smooth = (turns - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / r["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def write_gguf(path, model, dtype, tokenizer, merges):
    c = model.config
    heads, kv = c.num_attention_heads, c.num_key_value_heads
    w = gguf.GGUFWriter(path, c.model_type)
    w.add_name("random " + c.model_type)
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // heads
    if head_dim * heads != c.hidden_size:
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
        w.add_rope_dimension_count(head_dim)
    if c.rope_parameters["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(c.rope_parameters["factor"])
    size = tokenizer.get_vocab_size()
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([tokenizer.id_to_token(i) for i in range(size)] + [f"[PAD{i}]" for i in range(size, c.vocab_size)])
    w.add_token_types([1] * (size - 2) + [3, 3] + [5] * (c.vocab_size - size))
    w.add_token_merges([" ".join(m) for m in merges])
    w.add_bos_token_id(size - 2)
    w.add_eos_token_id(size - 1)
    w.add_add_bos_token(False)
    w.add_chat_template(TEMPLATE)
    if c.rope_parameters["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", rope_factors(c))
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, c.model_type.upper()), c.num_hidden_layers)
    kind = {torch.float32: gguf.GGMLQuantizationType.F32, torch.float16: gguf.GGMLQuantizationType.F16,
            torch.bfloat16: gguf.GGMLQuantizationType.BF16}[dtype]
    for name, t in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        a = t.numpy()
        if c.model_type == "llama" and ".q_proj." in name:
            a = permute(a, heads)
        if c.model_type == "llama" and ".k_proj." in name:
            a = permute(a, kv)
        a = np.ascontiguousarray(a)
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if a.ndim == 1:
            w.add_tensor(target, a.astype(np.float32))
        else:
            w.add_tensor(target, gguf.quants.quantize(a, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@torch.no_grad()
def main(out):
    os.makedirs(out, exist_ok=True)
    torch.set_num_threads(1)
    tokenizer, merges = byte_tokenizer()
    document = {"torch": torch.__version__, "transformers": __import__("transformers").__version__, "models": []}
    for n, (name, config_class, model_class, dtype, form, shape) in enumerate(MODELS):
        generator = torch.Generator().manual_seed(1000 + n)
        config = config_class(max_position_embeddings=512, bos_token_id=258, eos_token_id=259, pad_token_id=None,
                              attn_implementation="eager", **shape)
        model = model_class(config).eval()
        randomise(model, generator)
        for p in model.parameters():  # the file's numbers are the truth; buffers (frequencies) stay float32
            p.data = p.data.to(dtype).to(torch.float32)
        if config.tie_word_embeddings:
            assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
        write_folder(os.path.join(out, name), model, dtype, form, tokenizer)
        write_gguf(os.path.join(out, name + ".gguf"), model, dtype, tokenizer, merges)
        sequences, kept = [], []
        for length in LENGTHS:
            tokens = torch.randint(0, config.vocab_size, (length,), generator=generator)
            logits = model(tokens[None]).logits[0]
            rows = list(range(length)) if length < 150 else [0, 31, 32, 64, 100, 127, 128, 149]
            sequences.append({"tokens": tokens.tolist(), "rows": rows})
            kept.append(logits[rows])
        kept = torch.cat(kept).numpy().astype("<f4")
        kept.tofile(os.path.join(out, name + ".f32"))
        document["models"].append({"name": name, "vocab": config.vocab_size, "sequences": sequences,
                                   "parameters": sum(p.numel() for p in model.parameters())})
        print(name, "largest", np.abs(kept).max(), "std", kept.std())
    with open(os.path.join(out, "random.json"), "w") as f:
        json.dump(document, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
