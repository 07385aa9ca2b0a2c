"""Writes a Hugging Face tokenizer folder with a token for every byte: byte-level BPE without merges."""

import os
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {symbol: i for i, symbol in enumerate(alphabet)}
vocabulary["<|end|>"] = len(vocabulary)
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
os.makedirs(sys.argv[1], exist_ok=True)
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|end|>").save_pretrained(sys.argv[1])
