#!/usr/bin/env bash
# Every test that needs a GPU, on a machine with one: all must run and pass. What can be skipped is not there.
#
#   bench/h200/check-gpu.sh FOLDER OUT
#
# FOLDER is pack.sh's. OUT gets check-gpu.txt: the GPU, and a line a test; and where all passed check-gpu.json, the record that is kept as
# evidence/kernels/MACHINE/check-gpu.json: which modules of PTX, by hash, those tests ran. COTENANT_CUDA_MODEL may name a model whose greedy
# text is compared with the CPU's besides. torch and transformers are needed, as the oracle of logits.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(readlink -f "${1:?a folder of pack.sh}")
out=$(readlink -m "${2:?a folder for the results}")
mkdir -p "$out"
rm -f "$out/check-gpu.json"
export COTENANT_REQUIRE_GPU=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

check() {
	nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || return 1
	local failed=0 binary log n
	python3 -B "$here/logits.py" "$scratch/logits" 2>"$scratch/err" || { tail -3 "$scratch/err"; failed=1; }
	export COTENANT_CUDA_LOGITS=$scratch/logits
	for binary in "$folder"/*.test; do
		log=$scratch/$(basename "$binary" .test).log
		# TestFaults and TestSharedGPU are of drivers that are played, TestKernelsOnHost of a compiler, TestUnprovenIsExact of the repository.
		"$binary" -test.v -test.skip '^(TestFaults|TestSharedGPU|TestKernelsOnHost|TestUnprovenIsExact)$' -test.timeout 8m >"$log" 2>&1 || failed=1
		echo "== $(basename "$binary")"
		grep -E '^ *--- |off by|panic:' "$log"
		n=$(grep -c '^ *--- PASS' "$log")
		if [ "$n" = 0 ] || grep -qE '^ *--- (SKIP|FAIL)' "$log"; then
			failed=1
			grep -vE '^=== ' "$log" | cut -c1-300 | tail -20
		fi
	done
	return $failed
}

record() {
	python3 - "$folder/build.json" "$scratch"/*.log >"$scratch/record" <<'PY' && mv "$scratch/record" "$out/check-gpu.json"
import datetime, json, os, re, subprocess, sys

build = json.load(open(sys.argv[1]))
gpu, driver = subprocess.check_output(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], text=True).splitlines()[0].split(", ")
modules, tests = {}, []
for path in sys.argv[2:]:
    log, name = open(path).read(), os.path.basename(path)[:-len(".log")]
    modules.update(re.findall(r"\bmodule (\w+) ([0-9a-f]{64})$", log, re.M))
    tests += [f"{name} {t}" for t in re.findall(r"^--- PASS: (\w+)", log, re.M)]
if not modules:
    sys.exit("no test loaded a module of kernels")
print(json.dumps({"schema_version": 1, "operation": "check-gpu", "gpu": gpu, "driver": driver, "date": datetime.date.today().isoformat(),
                  "commit": build["commit"], "modified": build["modified"],
                  "modules": [{"name": n, "sha256": h} for n, h in sorted(modules.items())], "tests": tests}, indent=2))
PY
}

check 2>&1 | tee "$out/check-gpu.txt"
code=${PIPESTATUS[0]}
[ "$code" != 0 ] || record || code=1
[ "$code" = 0 ] && echo "PASS: $(grep -c '^ *--- PASS' "$out/check-gpu.txt") tests" || echo FAIL
exit "$code"
