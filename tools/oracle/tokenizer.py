#!/usr/bin/env python3
"""Makes the oracles of internal/tokenizer: what Hugging Face's tokenizers makes of 3,600 strings, and how it splits.

    pip install tokenizers==0.23.3 gguf==0.19.0
    tools/oracle/tokenizer.py MODEL_DIR OUT_DIR

MODEL_DIR holds qwen3/tokenizer.json, llama3_1/tokenizer.json and SmolLM2-135M-Instruct.Q4_1.gguf (tools/fetch brings them). OUT_DIR is
internal/tokenizer/testdata. Written are

  strings.json.gz   the strings
  NAME.json.gz      for qwen3, llama3_1, smollm2 and smollm2_gpt2: the file's SHA-256, "plain": ids of every string with control tokens
                    taken as text, "special": {index: ids} where recognising them changes the ids, "decoded": the text of 200 id lists
  small_*.json      four vocabularies of 600 tokens, trained here on the strings: one for each pre-tokenizer
  small.json.gz     the same as NAME.json.gz for these, on every fifth string
  classes.json.gz   ranges of characters by class, seen through the pre-tokenizers' splits

SmolLM2's published tokenizer.json splits digits first (Sequence[Digits, ByteLevel]), which transformers' GGUF reader leaves out; so the tokenizer is
built here from the GGUF's vocabulary with the published structure. smollm2_gpt2 is the same vocabulary with ByteLevel alone.
"""

import gzip
import hashlib
import json
import random
import sys
from pathlib import Path

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")

BLOCKS = [  # first and last code point of scripts and symbol blocks
    (0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x17F), (0x180, 0x24F), (0x250, 0x2AF), (0x2B0, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF),
    (0x400, 0x4FF), (0x531, 0x587), (0x591, 0x5F4), (0x600, 0x6FF), (0x700, 0x74F), (0x780, 0x7B1), (0x7C0, 0x7FA), (0x900, 0x97F),
    (0x980, 0x9FE), (0xA01, 0xA76), (0xA81, 0xAFF), (0xB01, 0xB77), (0xB82, 0xBFA), (0xC00, 0xC7F), (0xC80, 0xCF2), (0xD00, 0xD7F),
    (0xD81, 0xDF4), (0xE01, 0xE5B), (0xE81, 0xEDF), (0xF00, 0xFDA), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF),
    (0x1200, 0x137C), (0x13A0, 0x13FD), (0x1400, 0x167F), (0x1680, 0x169C), (0x16A0, 0x16F8), (0x1780, 0x17F9), (0x1800, 0x18AA),
    (0x1A20, 0x1AAD), (0x1B00, 0x1B7E), (0x1D00, 0x1DBF), (0x1DC0, 0x1DFF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFE), (0x2000, 0x206F),
    (0x2070, 0x209C), (0x20A0, 0x20C0), (0x20D0, 0x20F0), (0x2100, 0x218B), (0x2190, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x25FF),
    (0x2600, 0x27BF), (0x2C00, 0x2C5F), (0x2D30, 0x2D7F), (0x2E80, 0x2FD5), (0x3000, 0x303F), (0x3041, 0x30FF), (0x3105, 0x312F),
    (0x3131, 0x318E), (0x3200, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA4C6), (0xA640, 0xA69F), (0xA720, 0xA7CA),
    (0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0xF900, 0xFAD9), (0xFB00, 0xFB4F), (0xFB50, 0xFDFF), (0xFE00, 0xFE6F), (0xFF01, 0xFFDC),
    (0x10000, 0x100FA), (0x10330, 0x1034A), (0x10400, 0x1044F), (0x10840, 0x10855), (0x10A00, 0x10A58), (0x11000, 0x1106F),
    (0x12000, 0x12399), (0x13000, 0x1342F), (0x1B000, 0x1B122), (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F), (0x1F000, 0x1F02B),
    (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0xE0001, 0xE007F), (0xF0000, 0xF00FF), (0x10FF00, 0x10FFFD),
]
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "❤️‍🔥", "1️⃣", "🧑🏿‍🚀", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "😀", "🤷🏻‍♂️", "☃", "©️"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "\u200b",
          "\u1680", "\v", "\f", "\u202f", "\ufeff", "\u001c", "\u180e"]
LITERALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
            "<|python_tag|>", "<|reserved_special_token_0|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<repo_name>",
            "<file_sep>", "<jupyter_start>", "<|fim_prefix|>", "<|vision_start|>", "<|box_end|>", "<tool_response>"]
BROKEN = ["<|im_start", "im_end|>", "<|im_ end|>", "<|IM_END|>", "<<|im_end|>>", "<|im_end|><|im_end|>", "<|im_end|", "|>", "<|",
          "<|reserved_special_token_9999|>", "<|eot_id|", "< |im_end|>", "<think", "</think>>", "<|im_start|>system\nYou are"]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'ve", "'VE", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D", "'ſ", "'K", "’s",
                "'", "''s", "'sS", "'l", "'r", "'v", "'x", "'ß", "'ﬆ"]
MIXED = [
    "The quick brown fox jumps over the lazy dog.", "I'll say they've done what we'd do; it's John's, isn't it? I'M SURE YOU'RE RIGHT.",
    "Größenwahnsinnige Übermütigkeit straße ß ẞ", "Être ou ne pas être, là est la question… «œuvre»", "¿Qué tal? ¡Muy bien! El Niño",
    "Съешь же ещё этих мягких французских булок", "Η γρήγορη αλεπού ΠΗΔΆ", "שלום עולם, מה שלומך?", "السلام عليكم يا عالم ١٢٣٤٥",
    "नमस्ते दुनिया १२३ क्षत्रिय", "สวัสดีชาวโลก ๑๒๓", "こんにちは世界、カタカナとひらがな。", "你好，世界！２０２６年１２月", "안녕하세요 세계 여러분 ㅋㅋㅋ",
    "Xin chào thế giới, tiếng Việt có dấu", "İstanbul'da ıssız ağaç", "ქართული ენა", "Հայերեն լեզու", "አማርኛ ፊደል", "ភាសាខ្មែរ", "ພາສາລາວ",
    "မြန်မာဘာသာ", "བོད་སྐད", "தமிழ் மொழி ௧௨௩", "తెలుగు భాష", "ಕನ್ನಡ ಭಾಷೆ", "മലയാളം", "සිංහල", "বাংলা ভাষা ১২৩", "ਪੰਜਾਬੀ", "ગુજરાતી",
    "func main() {\n\tfmt.Println(\"hi\")\r\n}\n", "def f(x):\n    return x**2  # squared\n\n\n", "x = [1, 22, 333, 4444, 55555, 666666]",
    "3.14159 1,000,000.00 0x1F 1e-9 ½ ¾ Ⅻ ⅷ ² ³ ①② ٣٤٥ ۶۷ 五六七", "https://example.org/a/b?c=d&e=%20#f", "user@example.com", "C:\\Users\\x\\y",
    "<html><body class=\"a\">&amp;&nbsp;</body></html>", "{\"key\": [null, true, -1.5e+10, \"\\u00e9\"]}", "a\u0301 e\u0308 n\u0303 \u1e9b\u0323",
    "ﬁ ﬂ ﬃ Å Å Ω Ω", "각 각 \u1100\u1161\u11a8", "\u0344 \u0958 \u2126 \u212b \u2adc", "q\u0307\u0323 q\u0323\u0307", "\x00\x01\x02\x7f\x80\x9f",
    "\ufffd\ufffd \ufffe \uffff", "\u202e reversed \u202c", "𝒳𝓎𝓏 𝟘𝟙𝟚 🄰 🅱", "A\u200dB\u200cC\u2060D", "…---...___***+++===~~~```", "$100 €50 £20 ¥3000 ₿",
]


def strings():
    rnd = random.Random(20261130)
    out = ["", *MIXED, *EMOJI, *SPACES, *LITERALS, *BROKEN, *CONTRACTIONS]
    block = lambda: "".join(chr(rnd.randint(*b)) for b in [rnd.choice(BLOCKS)] for _ in range(rnd.randint(1, 12)))
    for lo, hi in BLOCKS:  # each block: a run, words, with digits and punctuation
        for _ in range(4):
            c = lambda: chr(rnd.randint(lo, hi))
            out.append("".join(c() for _ in range(rnd.randint(1, 24))))
            out.append(" ".join("".join(c() for _ in range(rnd.randint(1, 6))) for _ in range(rnd.randint(2, 6))))
        out.append("a" + c() + "1" + c() + " " + c() + "\n" + c() + "'" + c() + "s" + c() + "!")
    for n in range(1, 120):
        out.append("".join(rnd.choice("0123456789") for _ in range(rnd.randint(1, 20))))
        out.append(rnd.choice([" ", "\n", "\t", "\r\n", "\u00a0"]) * n)
        out.append("x" + " " * rnd.randint(1, 20) + rnd.choice(["y", "1", "!", "\n", "\u00e9", ""]))
    for a in SPACES:
        for b in ("a", "1", "!", "\n", "é", "'s", "中", "", "\u0301"):
            out.append("w" + a + b + a + a + b)
    for a in CONTRACTIONS:
        for b in ("", "x", " x", "1", "!", "ſ", "é"):
            out.append("you" + a + b)
    pieces = lambda: rnd.choice([lambda: rnd.choice(MIXED), block, lambda: rnd.choice(EMOJI), lambda: rnd.choice(SPACES),
                                 lambda: rnd.choice(LITERALS), lambda: rnd.choice(BROKEN), lambda: rnd.choice(CONTRACTIONS),
                                 lambda: str(rnd.randint(0, 10**rnd.randint(1, 12))), block])()
    while len(out) < 3560:
        out.append("".join(pieces() for _ in range(rnd.randint(2, 5))))
    for c in "a1 \n!é中😀'<":
        out.extend([c * 33, c * 257, c * 1000, (c + " ") * 100])
    return out


def ids(tokenizer, text, special):
    tokenizer.encode_special_tokens = not special  # True: control tokens are text
    return tokenizer.encode(text, add_special_tokens=False).ids


def oracle(tokenizer, texts, **more):
    plain = [ids(tokenizer, s, False) for s in texts]
    special = {i: x for i, s in enumerate(texts) if (x := ids(tokenizer, s, True)) != plain[i]}
    tokenizer.encode_special_tokens = False
    decoded = []
    rnd = random.Random(7)
    for _ in range(200):  # ids that no text gives: broken UTF-8
        x = [rnd.randrange(tokenizer.get_vocab_size()) for _ in range(rnd.randint(1, 6))]
        decoded.append([x, tokenizer.decode(x, skip_special_tokens=False)])
    return {"tokenizers": "0.23.3", **more, "plain": plain, "special": special, "decoded": decoded}


def write(path, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    data = gzip.compress(text, 9, mtime=0)
    path.write_bytes(data)
    print(path.name, len(data), hashlib.sha256(data).hexdigest())


def byte_level(model, pre):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def smollm2(path, pre):
    fields = gguf.GGUFReader(path).fields
    get = lambda key: fields["tokenizer.ggml." + key].contents()
    tokens = get("tokens")
    merges = [tuple(m.split(" ")) for m in get("merges")]
    tokenizer = byte_level(models.BPE({t: i for i, t in enumerate(tokens)}, merges), pre)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, get("token_type")) if k == 3])
    return tokenizer


PRE = {
    "gpt2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "qwen2": lambda: split(QWEN2),
    "llama3": lambda: split(LLAMA3),
}


def split(regex):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def small(name, texts, out):
    """Trains a vocabulary with control tokens, user-defined ones and one that is looked for in normalised text."""
    tokenizer = byte_level(models.BPE(ignore_merges=name == "llama3"), PRE[name]())
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken("<|eot_id|>", special=True, normalized=False), AddedToken("ếl", special=True, normalized=True)])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("<think>>", normalized=False), AddedToken("</think>", normalized=True)])
    path = out / f"small_{name}.json"
    tokenizer.save(str(path), pretty=False)
    return Tokenizer.from_file(str(path))


def classes():
    """Letter, number, space or other, as GPT-2's expression sees each character; ranges [first, last, class]."""
    pre = PRE["gpt2"]()
    pieces = lambda s: len(pre.pre_tokenize_str(s))
    ranges = []
    for cp in [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]:
        c = chr(cp)
        kind = "L" if pieces("a" + c + "a") == 1 else "N" if pieces("1" + c + "1") == 1 else "O" if pieces("!" + c + "!") == 1 else "S"
        if ranges and ranges[-1][1] == cp - 1 and ranges[-1][2] == kind:
            ranges[-1][1] = cp
        else:
            ranges.append([cp, cp, kind])
    return [r for r in ranges if r[2] != "O"]


def main():
    models_dir, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    texts = strings()
    write(out / "strings.json.gz", texts)
    for name in ("qwen3", "llama3_1"):
        path = models_dir / name / "tokenizer.json"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        write(out / f"{name}.json.gz", oracle(Tokenizer.from_file(str(path)), texts, sha256=digest))
    path = models_dir / "SmolLM2-135M-Instruct.Q4_1.gguf"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for name, pre in (("smollm2", "smollm"), ("smollm2_gpt2", "gpt2")):
        write(out / f"{name}.json.gz", oracle(smollm2(path, PRE[pre]()), texts, sha256=digest))
    some = texts[::5] + ["e\u0302\u0301l <|eot_id|>", "x\u1ebfly \u00ea\u0301l", "<think>>>", "a<think>b</think>c"]
    write(out / "small.json.gz", {"strings": some, "oracles": {n: oracle(small(n, texts, out), some) for n in PRE}})
    write(out / "classes.json.gz", classes())


if __name__ == "__main__":
    main()
