"""Writes the same prompts in the forms that GuideLLM and AIPerf read: one shared base and one task a line, 8 tokens each."""

import json
import sys

TOKENS = 8
count, guidellm, aiperf = int(sys.argv[1]), sys.argv[2], sys.argv[3]
base = "You keep the log of a harbour. " + " ".join(f"Ship {i} lies at berth {i % 7}." for i in range(20))
with open(guidellm, "w") as g, open(aiperf, "w") as a:
    for i in range(count):
        prompt = f"{base} Task {i}: where does ship {i % 20} lie?"
        print(json.dumps({"prompt": prompt, "output_tokens_count": TOKENS}), file=g)
        print(json.dumps({"text": prompt, "output_length": TOKENS}), file=a)
