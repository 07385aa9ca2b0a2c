#!/usr/bin/env python3
"""One line of a soak's ledger: ledger_line.py NAME LEDGER. What the ledger doesn't have is `-`."""
import json, sys


def number(value, unit=1, digits=0):
    return "-" if value is None else f"{value / unit:.{digits}f}"


def line(name, d):
    def ms(what, p):
        return number(((d["times"].get(what) or {}).get(p) or {}).get("value_us"), 1e3, 2)

    n, tokens, rates = d["counts"]["completed"], d["tokens"], d["rates"]
    each = {k: number(tokens[k], max(n, 1)) for k in ("prompt", "cached", "completion")}
    return (f"{name}: {n} of {d['contexts']}, prompt {each['prompt']} (cached {each['cached']}), completion {each['completion']}, "
            f"wall {number(d['wall_us'], 1e6, 3)} s, {number(rates['results_per_1e6s'], 1e6, 1)} results/s, "
            f"{number(rates['completion_tokens_per_1e6s'], 1e6)} tokens/s, TTFT p50/p95 {ms('ttft', 'p50')}/{ms('ttft', 'p95')} ms, "
            f"token p50 {ms('inter_token', 'p50')} ms, deltas {number(tokens['deltas'])}")


if __name__ == "__main__":
    name, path = sys.argv[1:]
    try:
        d = json.load(open(path))
    except (OSError, ValueError):
        sys.exit(f"{name}: no ledger")
    print(line(name, d))
