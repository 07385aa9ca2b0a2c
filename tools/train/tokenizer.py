"""Trains the embedded model's byte-level BPE vocabulary and writes tokenizer.json.

    go run ./tools/train/taskgen -n 3000 -seed 900000000 | python tools/train/tokenizer.py tools/train/tokenizer.json

Needs: tokenizers 0.23. The pre-tokenizer is Qwen2's (NFC, one digit at a time), so that sums are made of digits.
"""

import json
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCABULARY = 1024
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def texts(lines):
    for line in lines:
        sample = json.loads(line)
        yield "system\n" + sample["system"]
        for question, answer in sample["turns"]:
            yield "\n"
            yield "user\n" + question
            yield "assistant\n" + answer


def main():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(sys.stdin), trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    tokenizer.save(sys.argv[1])
    print(tokenizer.get_vocab_size(), {s: tokenizer.token_to_id(s) for s in SPECIALS}, file=sys.stderr)


if __name__ == "__main__":
    main()
