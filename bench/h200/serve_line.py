"""serve_line.py NAME LEDGER: one line of a run's ledger, for bench/h200/serve.sh."""
import json, sys

name, path = sys.argv[1:3]
try:
    d = json.load(open(path))
except ValueError:
    sys.exit(f"{name}: no ledger")


def ms(what, p):
    v = (d["times"].get(what) or {}).get(p) or {}
    return "-" if v.get("value_us") is None else f"{v['value_us'] / 1000:.2f}"


n = d["counts"]["completed"]
print(f"{name}: {n} of {d['contexts']}, prompt {d['tokens']['prompt'] / max(n, 1):.0f} (cached {d['tokens']['cached'] / max(n, 1):.0f}), "
      f"completion {d['tokens']['completion'] / max(n, 1):.0f}, wall {d['wall_us'] / 1e6:.3f} s, {d['rates']['results_per_1e6s'] / 1e6:.1f} results/s, "
      f"{d['rates']['completion_tokens_per_1e6s'] / 1e6:.0f} tokens/s, TTFT p50/p95 {ms('ttft', 'p50')}/{ms('ttft', 'p95')} ms, "
      f"token p50 {ms('inter_token', 'p50')} ms, deltas {d['tokens']['deltas']}")
