#!/usr/bin/env python3
"""Writes a Hugging Face folder of a known shape with random bf16 weights, for measuring speed: answers mean nothing.

    randommodel.py {0.5b|8b|tiny} FOLDER

0.5b has the shape of Qwen2.5-0.5B, 8b that of Llama-3.1-8B. The tokenizer is made up: bytes, then pairs and triples of letters, so a
text has about twice the tokens that a trained vocabulary would give it. A file of 16 GB takes some seconds.
"""
import json, math, os, random, struct, sys

SHAPES = {
    "0.5b": dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
                 intermediate_size=4864, vocab_size=151936, tie_word_embeddings=True, rope_theta=1e6, rms_norm_eps=1e-6, max_position_embeddings=32768),
    "8b": dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
               intermediate_size=14336, vocab_size=128256, tie_word_embeddings=False, rope_theta=5e5, rms_norm_eps=1e-5, max_position_embeddings=8192),
    "tiny": dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                 intermediate_size=256, vocab_size=1024, tie_word_embeddings=True, rope_theta=1e6, rms_norm_eps=1e-6, max_position_embeddings=4096),
}


def byte_alphabet():
    """GPT-2's characters for bytes."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    out, n = {}, 0
    for b in range(256):
        out[b] = chr(b) if b in printable else chr(256 + n)
        n += b not in printable
    return out


def tokenizer(vocab_size, eos):
    chars = list(byte_alphabet().values())
    vocab, merges = {c: i for i, c in enumerate(chars)}, []
    letters = [c for c in map(chr, range(33, 127))] + ["Ġ"]
    room = vocab_size - 64  # the end token and some that stay unused

    def merge(a, b):
        if len(vocab) < room and a + b not in vocab:
            vocab[a + b] = len(vocab)
            merges.append([a, b])

    for a in letters:
        for b in letters:
            merge(a, b)
    for pair in [p for p in list(vocab) if len(p) == 2]:
        for c in map(chr, range(97, 123)):
            merge(pair, c)
    added = [{"id": len(vocab), "content": "<|end|>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False},
             {"id": len(vocab) + 1, "content": "<|start|>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}]
    split = {"type": "Split", "pattern": {"Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"},
             "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "post_processor": level, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges}}, added[0]["id"]


def tensors(c):
    h, f, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    d = h // c["num_attention_heads"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    yield "model.embed_tokens.weight", (v, h)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (h,)
        yield p + "post_attention_layernorm.weight", (h,)
        for n, r in (("q", q), ("k", kv), ("v", kv)):
            yield p + f"self_attn.{n}_proj.weight", (r, h)
            if c["model_type"] == "qwen2":
                yield p + f"self_attn.{n}_proj.bias", (r,)
        yield p + "self_attn.o_proj.weight", (h, q)
        yield p + "mlp.gate_proj.weight", (f, h)
        yield p + "mlp.up_proj.weight", (f, h)
        yield p + "mlp.down_proj.weight", (h, f)
    yield "model.norm.weight", (h,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (v, h)


def main():
    shape, out = sys.argv[1], sys.argv[2]
    c = dict(SHAPES[shape])
    os.makedirs(out, exist_ok=True)
    tok, end = tokenizer(c["vocab_size"], None)
    c.update(bos_token_id=end, eos_token_id=end, torch_dtype="bfloat16", hidden_act="silu")
    text = json.dumps
    open(f"{out}/config.json", "w").write(text(c))
    open(f"{out}/tokenizer.json", "w").write(text(tok))
    template = "{% for m in messages %}{{ '<|start|>' + m['role'] + '\n' + m['content'] + '<|end|>\n' }}{% endfor %}" \
               "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
    open(f"{out}/chat_template.jinja", "w").write(template)
    open(f"{out}/tokenizer_config.json", "w").write(text({"eos_token": "<|end|>", "chat_template": template, "tokenizer_class": "Qwen2Tokenizer"}))
    header, at, todo = {"__metadata__": {"format": "pt"}}, 0, []
    for name, dims in tensors(c):
        size = 2 * math.prod(dims)
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [at, at + size]}
        todo.append((name, size))
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    # bf16 of either sign with the exponents of 2^-7 and 2^-6: about as spread as a trained model's.
    rng, half = random.Random(3), 1 << 25
    noise = bytearray(2 * half)
    noise[0::2] = rng.randbytes(half)
    noise[1::2] = rng.randbytes(half).translate(bytes([0x3C] * 128 + [0xBC] * 128))
    ones = struct.pack("<H", 0x3F80) * (1 << 15)
    with open(f"{out}/model.safetensors", "wb", buffering=0) as f:
        f.write(struct.pack("<Q", len(head)) + head)
        turn = 0
        for name, size in todo:
            if "norm" in name:
                f.write(ones[:size])
                continue
            while size:  # each tensor begins elsewhere in the same noise
                turn = (turn + 7919 * 2) % (len(noise) // 2)
                n = min(size, len(noise) - turn)
                f.write(noise[turn:turn + n])
                size -= n
    print(out, at, "bytes of weights")


if __name__ == "__main__":
    main()
