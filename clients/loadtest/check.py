"""Reads both tools' reports: the requests were answered, and none failed.

GuideLLM leaves its last few answers out of its counts when it stops, so up to 8 may be missing there.
"""

import json
import sys

want = int(sys.argv[1])
aiperf = json.load(open(sys.argv[2]))
guidellm = json.load(open(sys.argv[3]))
rows = []

good = int(aiperf["request_count"]["avg"])
bad = int((aiperf.get("error_request_count") or {"avg": 0})["avg"])
rows.append(("AIPerf", good, bad, 0, aiperf["request_throughput"]["avg"], aiperf["time_to_first_token"]["p50"]))

metrics = guidellm["benchmarks"][0]["metrics"]
totals = metrics["request_totals"]
rows.append(
    (
        "GuideLLM", totals["successful"], totals["errored"], 8,
        metrics["requests_per_second"]["successful"]["mean"], metrics["time_to_first_token_ms"]["successful"]["percentiles"]["p50"],
    )
)
failed = 0
for name, good, bad, missing, rate, ttft in rows:
    print(f"{name}: {good} good, {bad} bad, {rate:.2f} requests/s, TTFT p50 {ttft:.1f} ms")
    failed += not max(want - missing, 1) <= good <= want or bad != 0
passed = len(rows) - failed
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
