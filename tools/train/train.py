"""Trains Cotenant's embedded model on generated tasks and writes Hugging Face files.

    CGO_ENABLED=0 go build -o taskgen ./tools/train/taskgen

Needs one CUDA GPU (bfloat16), torch 2.11, tokenizers 0.23, safetensors, numpy. Architecture: Qwen3 (q/k norm, SwiGLU,
tied embeddings), 4 layers. The loss is taken on answers alone; a conversation holds many questions, so a batch holds
some thousands of answers. Questions of the held-out split are never trained on (see taskgen).

Writes model.safetensors (float32), config.json, generation_config.json, tokenizer.json, tokenizer_config.json and
train.json (arguments, seeds, versions, loss curve, held-out accuracy). GPU kernels are not bit-reproducible: a second run
gives another model of like accuracy.
"""

import argparse
import hashlib
import json
import math
import os
import subprocess
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer

CONFIG = dict(
    architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=256, intermediate_size=704, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=1024, max_position_embeddings=2048,
    rope_theta=10000.0, rms_norm_eps=1e-6, tie_word_embeddings=True, hidden_act="silu", attention_bias=False,
    use_sliding_window=False, bos_token_id=None, eos_token_id=1023, torch_dtype="float32",
)
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PAD, START, END = 1021, 1022, 1023
KINDS = ["repeat", "sum", "lookup", "order"]
# (share of the time, smallest and largest base, questions, tokens a row, rows a batch)
PHASES = [(0.35, 160, 330, 14, 704, 224), (0.65, 160, 1000, 24, 1600, 88)]


class Data(torch.utils.data.IterableDataset):
    """Batches of one phase; each loader process runs a taskgen of its own over seeds of its own."""

    def __init__(self, args, phase, seed, heldout=False, count=1 << 40):
        _, low, high, turns, self.length, self.rows = phase
        self.seed = seed
        self.command = [args.taskgen, "-n", str(count), "-min", str(low), "-max", str(high), "-turns", str(turns)]
        self.command += ["-heldout"] * heldout
        self.path = args.tokenizer

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        seed = self.seed + ((worker.id << 36) if worker else 0)
        self.tokenizer = Tokenizer.from_file(self.path)
        self.nl = self.tokenizer.encode("\n").ids
        self.roles = {r: self.tokenizer.encode(r + "\n").ids for r in ("system", "user", "assistant")}
        process = subprocess.Popen(self.command + ["-seed", str(seed)], stdout=subprocess.PIPE, bufsize=1 << 20)
        try:
            while True:
                lines = [line for _, line in zip(range(self.rows), process.stdout)]
                if len(lines) < self.rows:
                    return
                yield self.batch([json.loads(line) for line in lines])
        finally:
            process.kill()

    def loader(self, workers):
        return iter(torch.utils.data.DataLoader(self, batch_size=None, num_workers=workers, pin_memory=True,
                                                prefetch_factor=4 if workers else None))

    def batch(self, samples):
        flat = []
        for s in samples:
            flat.append(s["system"])
            for question, answer in s["turns"]:
                flat += [question, answer]
        ids = iter([e.ids for e in self.tokenizer.encode_batch_fast(flat)])
        tokens = np.full((self.rows, self.length), PAD, np.int32)
        kinds = np.full((self.rows, self.length), -1, np.int8)  # the kind of the answer that a position belongs to
        turn = np.full((self.rows, self.length), -1, np.int16)
        for row, s in enumerate(samples):
            out = [START] + self.roles["system"] + next(ids) + [END] + self.nl
            answers = []
            for k, _ in enumerate(s["turns"]):
                out += [START] + self.roles["user"] + next(ids) + [END] + self.nl + [START] + self.roles["assistant"]
                start = len(out)
                out += next(ids) + [END]
                answers.append((start, len(out), KINDS.index(s["kinds"][k])))
                out += self.nl
            out = out[: self.length]
            tokens[row, : len(out)] = out
            for k, (start, stop, kind) in enumerate(answers):
                if stop <= self.length:
                    kinds[row, start:stop] = kind
                    turn[row, start:stop] = k
        return torch.from_numpy(tokens), torch.from_numpy(kinds), torch.from_numpy(turn)

def norm(x, w):
    return F.rms_norm(x, (x.shape[-1],), w, CONFIG["rms_norm_eps"])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        c = CONFIG
        d, f, h, kv, hd = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.p = torch.nn.ParameterDict()
        for i in range(c["num_hidden_layers"]):
            for name, shape in {
                "self_attn.q_proj": (h * hd, d), "self_attn.k_proj": (kv * hd, d), "self_attn.v_proj": (kv * hd, d),
                "self_attn.o_proj": (d, h * hd), "mlp.gate_proj": (f, d), "mlp.up_proj": (f, d), "mlp.down_proj": (d, f),
            }.items():
                std = 0.02 / math.sqrt(2 * c["num_hidden_layers"]) if name.endswith(("o_proj", "down_proj")) else 0.02
                self.add(f"model.layers.{i}.{name}.weight", torch.randn(shape) * std * 2)
            for name, n in {"input_layernorm": d, "post_attention_layernorm": d, "self_attn.q_norm": hd, "self_attn.k_norm": hd}.items():
                self.add(f"model.layers.{i}.{name}.weight", torch.ones(n))
        self.add("model.embed_tokens.weight", torch.randn(c["vocab_size"], d) * 0.02)
        self.add("model.norm.weight", torch.ones(d))
        inverse = 1 / (c["rope_theta"] ** (torch.arange(0, hd, 2).double() / hd))
        angle = torch.outer(torch.arange(c["max_position_embeddings"]).double(), inverse)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def add(self, name, value):
        self.p[name.replace(".", "/")] = torch.nn.Parameter(value)

    def w(self, name):
        return self.p[name.replace(".", "/")]

    def rope(self, x):
        cos, sin = self.cos[: x.shape[2]].to(x.dtype), self.sin[: x.shape[2]].to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, tokens):
        c = CONFIG
        rows, length = tokens.shape
        h, kv, hd = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        x = F.embedding(tokens, self.w("model.embed_tokens.weight"))
        for i in range(c["num_hidden_layers"]):
            at = f"model.layers.{i}."
            y = norm(x, self.w(at + "input_layernorm.weight"))
            q, k, v = (
                F.linear(y, self.w(f"{at}self_attn.{n}_proj.weight")).view(rows, length, m, hd).transpose(1, 2)
                for n, m in (("q", h), ("k", kv), ("v", kv))
            )
            q = self.rope(norm(q, self.w(at + "self_attn.q_norm.weight")))
            k = self.rope(norm(k, self.w(at + "self_attn.k_norm.weight")))
            k, v = (t.repeat_interleave(h // kv, 1) for t in (k, v))
            a = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
            x = x + F.linear(a.transpose(1, 2).reshape(rows, length, h * hd), self.w(at + "self_attn.o_proj.weight"))
            y = norm(x, self.w(at + "post_attention_layernorm.weight"))
            y = F.silu(F.linear(y, self.w(at + "mlp.gate_proj.weight"))) * F.linear(y, self.w(at + "mlp.up_proj.weight"))
            x = x + F.linear(y, self.w(at + "mlp.down_proj.weight"))
        return norm(x, self.w("model.norm.weight"))

    def export(self):
        return {name.replace("/", "."): value.detach().float().cpu().contiguous() for name, value in self.p.items()}


def answer_logits(model, tokens, kinds):
    """Logits of the positions that predict an answer's token; [answers' tokens, vocabulary] and what they should be."""
    hidden = model(tokens[:, :-1])
    at = kinds[:, 1:] >= 0
    return F.linear(hidden[at], model.w("model.embed_tokens.weight")), tokens[:, 1:][at], at


@torch.no_grad()
def evaluate(model, args, batches):
    """Share of held-out answers of which every token is the most likely one: what greedy decoding would say."""
    right, total = np.zeros(len(KINDS)), np.zeros(len(KINDS))
    data = Data(args, PHASES[-1], seed=1 << 50, heldout=True, count=batches * PHASES[-1][-1])
    for batch in data.loader(0):
        tokens, kinds, turn = (t.cuda() for t in batch)
        with torch.autocast("cuda", torch.bfloat16):
            logits, want, at = answer_logits(model, tokens.long(), kinds)
        ok = logits.argmax(-1) == want
        row = torch.arange(len(tokens), device="cuda")[:, None].expand_as(at)[at]
        key = row * 1000 + turn[:, 1:][at].long()
        for kind in range(len(KINDS)):
            mine = kinds[:, 1:][at] == kind
            _, inverse = key[mine].unique(return_inverse=True)
            if len(inverse):
                good = torch.ones(int(inverse.max()) + 1, device="cuda").scatter_reduce(0, inverse, ok[mine].float(), "amin")
                right[kind] += good.sum().item()
                total[kind] += len(good)
    return {k: dict(right=int(r), of=int(n), share=round(float(r / n), 4)) for k, r, n in zip(KINDS, right, total)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--taskgen", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seed", type=int, default=20261130)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Model().cuda()
    count = sum(p.numel() for p in model.parameters())
    print(f"{count} parameters", flush=True)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0.0)],
                                  lr=args.rate, betas=(0.9, 0.98), fused=True)

    @torch.compile(dynamic=False)
    def hidden(tokens):
        return model(tokens)

    start, step, curve, done = time.time(), 0, [], 0.0
    for number, phase in enumerate(PHASES):
        data = Data(args, phase, seed=1 + number * (1 << 32)).loader(args.workers)
        done += phase[0]
        waited = 0.0
        while (now := time.time() - start) < done * args.seconds:
            progress = now / args.seconds
            rate = args.rate * min(1, step / 300) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
            for group in optimizer.param_groups:
                group["lr"] = rate
            before = time.time()
            tokens, kinds, _ = (t.cuda(non_blocking=True) for t in next(data))
            waited += time.time() - before
            with torch.autocast("cuda", torch.bfloat16):
                h = hidden(tokens[:, :-1].long())
                at = kinds[:, 1:] >= 0
                logits = F.linear(h[at], model.w("model.embed_tokens.weight"))
            loss = F.cross_entropy(logits.float(), tokens[:, 1:][at].long())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 200 == 0:
                value = round(loss.item(), 5)
                curve.append([step, round(now, 1), value])
                print(f"phase {number} step {step} {now:.0f}s loss {value} rate {rate:.2e} waited {waited:.1f}s", flush=True)
            if step % 2000 == 1999:
                print("held out:", {k: v["share"] for k, v in evaluate(model, args, 2).items()}, flush=True)
            step += 1
        del data
    accuracy = evaluate(model, args, 20)
    print("held out:", json.dumps(accuracy), flush=True)
    os.makedirs(args.out, exist_ok=True)
    path = lambda name: os.path.join(args.out, name)
    save_file(model.export(), path("model.safetensors"), metadata={"format": "pt"})
    write = lambda name, value: open(path(name), "w").write(json.dumps(value, indent=1) + "\n")
    write("config.json", CONFIG)
    write("generation_config.json", dict(eos_token_id=END))
    write("tokenizer_config.json", dict(chat_template=TEMPLATE, eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                        tokenizer_class="PreTrainedTokenizerFast", add_bos_token=False))
    open(path("tokenizer.json"), "w").write(open(args.tokenizer).read())
    digest = hashlib.sha256(open(path("model.safetensors"), "rb").read()).hexdigest()
    write("train.json", dict(arguments=dict(seconds=args.seconds, rate=args.rate, seed=args.seed), phases=PHASES,
                             parameters=count, steps=step, loss=curve, held_out=accuracy, torch=torch.__version__,
                             device=torch.cuda.get_device_name(), safetensors_sha256=digest))


if __name__ == "__main__":
    main()
