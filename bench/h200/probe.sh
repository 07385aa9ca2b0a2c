#!/usr/bin/env bash
# Every probe on a machine with one NVIDIA GPU that nobody else uses: prerequisite, Green Contexts of several sizes, 300 cycles, the map
# of splits, what is refused, the watchdog, an interrupted run, a killed supervisor, and MPS. Changes no setting of the card; a step that
# fails doesn't stop the others.
#
#   bench/h200/probe.sh BINARY OUT        (about a minute)
#
# OUT gets probe.log (everything that was printed), summary.txt (exit code and seconds of each step) and evidence.tar.gz.
set -uo pipefail
bin=$(readlink -f "${1:?the cotenant binary}")
out=$(readlink -f "${2:?a folder for the results}")
mkdir -p "$out"
work=$(mktemp -d /tmp/cotenant-h200-XXXXXX)
cd "$work"
exec 3>&1 >>"$out/probe.log" 2>&1
chmod +x "$bin" 2>/dev/null

step() { # step NAME WANTED-EXIT COMMAND…
	local name=$1 want=$2 start=$SECONDS code
	shift 2
	printf '\n==== %s: %s\n' "$name" "$*"
	timeout -k 5 75 "$@"
	code=$?
	local word=ok
	[ "$code" = "$want" ] || word=DIFFERS
	printf '%s\t%s\texit %s (want %s)\t%ss\n' "$word" "$name" "$code" "$want" $((SECONDS - start)) | tee -a "$out/summary.txt" >&3
}
ours() { ps -eo pid,ppid,stat,etimes,args | grep -E 'nvidia-cuda-mps|cotenant|probe-' | grep -v -e grep -e probe.sh; }

uname -a
nvidia-smi
nvidia-smi --query-gpu=uuid,name,driver_version,pci.bus_id,compute_mode,mig.mode.current,persistence_mode,display_active,memory.used --format=csv
command -v nvidia-cuda-mps-control && nvidia-cuda-mps-control -v
uuid=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -1 | tr -d ' ')
echo "GPU $uuid"
ls -l /dev/kmsg /dev/nvidia*
df -h "$work" | tail -1

step prerequisite 0 "$bin" probe prerequisite --gpu-uuid "$uuid" --json
step prerequisite-wrong-uuid 3 "$bin" probe prerequisite --gpu-uuid GPU-00000000-0000-0000-0000-000000000000
cat >roles.toml <<EOF
schema_version = 1
[[hosts.bench.gpus]]
role = "fast"
uuid = "$uuid"
EOF
step prerequisite-role 0 "$bin" probe prerequisite --gpu-uuid "$uuid" --topology roles.toml
step preview 0 "$bin" probe create --gpu-uuid "$uuid" --sms 16
"$bin" probe create --gpu-uuid "$uuid" --sms 16 --json >preview.json
allow=
grep -q '"go": true' preview.json || allow="--allow-display --allow-processes --allow-mps"
echo "overrides: ${allow:-none}"

create() { # create NAME WANTED-EXIT OPTION…
	local name=$1 want=$2
	shift 2
	step "$name" "$want" "$bin" probe create --gpu-uuid "$uuid" --confirm $allow --out "evidence/$name" "$@"
}
for n in 8 16 32 64; do create "sms-$n" 0 --sms "$n"; done
create role 0 --sms 16 --topology roles.toml
create groups-2 0 --groups 2
create groups-8 0 --groups 8
create groups-15 0 --groups 15
create groups-16 3 --groups 16 # an H200 grants 15 coscheduled groups of the smallest size
create groups-16-uncoscheduled 0 --groups 16 --ignore-coscheduling
create sizes-16-64 0 --sms 16,64
create uncoscheduled-10-10 0 --sms 10,10 --ignore-coscheduling
create map-cycles-300 0 --groups 2 --map --cycles 300
create too-much 3 --sms 64,72
create watchdog 3 --sms 16 --spin 20s --deadline 5s
if [ -S /var/run/docker.sock ]; then
	create container 0 --sms 16 --container
else
	create container 4 --sms 16 --container # blocked by the environment
fi

# An interrupted run: the worker holds a kernel of about a second a block when the signal comes.
printf '\n==== interrupted\n'
"$bin" probe create --gpu-uuid "$uuid" --confirm $allow --out evidence/interrupted --sms 16 --spin 3s --deadline 40s &
pid=$!
for _ in $(seq 150); do grep -q '"step":"launch","phase":"begin"' evidence/interrupted/journal.jsonl 2>/dev/null && break; sleep 0.1; done
sleep 0.5
kill -INT $pid
wait $pid
printf 'info\tinterrupted\texit %s (want 130)\n' $? | tee -a "$out/summary.txt" >&3

# A killed supervisor: its worker and its guard must end everything by themselves; cleanup finds nothing more to do.
printf '\n==== killed supervisor\n'
"$bin" probe create --gpu-uuid "$uuid" --confirm $allow --out evidence/killed --groups 2 --cycles 10000 --deadline 40s &
pid=$!
for _ in $(seq 150); do grep -q '"step":"cycle"' evidence/killed/journal.jsonl 2>/dev/null && break; sleep 0.1; done
sleep 1
kill -KILL $pid
wait $pid 2>/dev/null
echo "right after:"; ours
sleep 2
echo "two seconds later:"; ours
nvidia-smi --query-gpu=memory.used --format=csv
step killed-cleanup-preview 0 "$bin" probe cleanup --run evidence/killed
step killed-cleanup 0 "$bin" probe cleanup --run evidence/killed --confirm
tail -5 evidence/killed/journal.jsonl

if command -v nvidia-cuda-mps-control >/dev/null; then
	step mps-preview 0 "$bin" probe mps --gpu-uuid "$uuid"
	step mps 0 "$bin" probe mps --gpu-uuid "$uuid" --confirm $allow --out evidence/mps
	cat evidence/mps/result.json
	echo "after mps:"; ours
	nvidia-smi --query-gpu=memory.used,compute_mode --format=csv

	printf '\n==== killed supervisor of MPS\n'
	"$bin" probe mps --gpu-uuid "$uuid" --confirm $allow --out evidence/mps-killed &
	pid=$!
	for _ in $(seq 200); do grep -q '"by":"client".*"step":"launch"' evidence/mps-killed/journal.jsonl 2>/dev/null && break; sleep 0.1; done
	echo "before:"; ours
	kill -KILL $pid
	wait $pid 2>/dev/null
	sleep 1
	echo "a second later:"; ours
	sleep 6
	echo "seven seconds later:"; ours
	step mps-killed-cleanup-preview 0 "$bin" probe cleanup --run evidence/mps-killed
	step mps-killed-cleanup 0 "$bin" probe cleanup --run evidence/mps-killed --confirm
	tail -5 evidence/mps-killed/journal.jsonl
	echo "after cleanup:"; ours
	nvidia-smi --query-gpu=memory.used,compute_mode --format=csv
	ls -la /tmp | grep cotenant
	# Whatever is left by now is shown above; nothing of it may outlive this script.
	for d in /tmp/cotenant-p*/mps; do [ -S "$d/control" ] && echo quit | CUDA_MPS_PIPE_DIRECTORY=$d nvidia-cuda-mps-control; done
fi

for d in evidence/*; do
	[ -f "$d/manifest.json" ] && step "verify-$(basename "$d")" 0 "$bin" verify "$d"
done
for d in evidence/sms-16 evidence/map-cycles-300 evidence/watchdog evidence/interrupted; do
	echo "---- $d/result.json"; head -c 6000 "$d/result.json"
done
tar czf "$out/evidence.tar.gz" evidence
ours
cat "$out/summary.txt"
cat "$out/summary.txt" >&3
