package gputest

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
)

// programs writes the scripts and returns the folders of PATH.
func (m *Machine) programs(t testing.TB) []string {
	t.Helper()
	path := []string{m.Path("/usr/bin")}
	add := func(folder string) string {
		if folder == "" {
			folder = "/usr/bin"
		} else {
			path = append(path, m.Path(folder))
		}
		return folder
	}
	if s := m.Host.SMI; s != nil {
		m.write(t, filepath.Join(add(s.Folder), "nvidia-smi"), m.smiScript(t, *s), 0o755)
	}
	if p := m.Host.MPS; p != nil {
		if !p.NoProgram {
			m.write(t, filepath.Join(add(p.Folder), "nvidia-cuda-mps-control"), m.mpsScript(t, *p), 0o755)
		}
		for i, d := range p.Daemons {
			m.daemon(t, *p, i, d)
		}
	}
	return path
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// head starts a script: its own tools, and the log.
func (m *Machine) head() string {
	return "#!/bin/sh\nPATH=/usr/bin:/bin\nnote() { printf '%s\\n' \"$*\" >> " + quote(m.log) + "; }\n"
}

func (m *Machine) smiScript(t testing.TB, s SMI) string {
	t.Helper()
	head := m.head() + `case " $* " in
*" -r "*|*" --gpu-reset"*|*" -mig "*|*" --multi-instance-gpu"*|*" -c "*|*" --compute-mode"*|*" -pm "*|*" -pl "*|*" mig "*|*" -lgc "*|*" compute-policy "*|*" -e "*)
  note "MUTATING nvidia-smi $*" ;;
*) note "nvidia-smi $*" ;;
esac
`
	alive := m.Path("/.fake/alive")
	switch s.Behaviour {
	case SMIUninterruptible:
		return head + "exec " + quote(build(t, "hang.c", "hang")) + " vfork " + quote(alive) + "\n"
	case SMIGrandchild:
		return head + "echo 'GPU 0: partial output'\nexec " + quote(build(t, "hang.c", "hang")) + " grandchild " + quote(alive) + "\n"
	case SMIText:
		return head + "printf '%s\\n' " + quote(s.Text) + fmt.Sprintf("\nexit %d\n", s.Exit)
	}
	m.smiFields(t, s)
	return head + smiBody(m.Path("/.fake/smi"))
}

// smiBody answers --query-gpu from a table: "K" and a field that is known, "U" and one whose values have a unit, which nounits cuts,
// "G", a GPU, a field and its value.
func smiBody(dir string) string {
	return "D=" + quote(dir) + `
fields= header=1 units=1
for a in "$@"; do
  case "$a" in
  --query-gpu=*) fields=${a#*=} ;;
  --format=*)
    case ",${a#*=}," in *,noheader,*) header=0 ;; esac
    case ",${a#*=}," in *,nounits,*) units=0 ;; esac ;;
  -L) cat "$D/list"; exit 0 ;;
  --version) cat "$D/version"; exit 0 ;;
  esac
done
if [ -z "$fields" ]; then cat "$D/banner"; exit 0; fi
exec awk -v fields="$fields" -v header="$header" -v units="$units" '
$1 == "K" { known[$2] = 1 }
$1 == "U" { unit[$2] = 1 }
$1 == "G" {
  if (!($2 in seen)) { seen[$2] = 1; order[gpus++] = $2 }
  v = $0
  for (i = 0; i < 3; i++) sub(/^[^ ]* /, "", v)
  if (!units && ($3 in unit) && v !~ /^\[/) sub(/ .*/, "", v)
  value[$2, $3] = v
}
END {
  n = split(fields, f, ",")
  for (i = 1; i <= n; i++) if (!(f[i] in known)) { printf "Field \"%s\" is not a valid field to query.\n\n", f[i]; exit 2 }
  if (header == 1) { for (i = 1; i <= n; i++) printf "%s%s", f[i], i < n ? ", " : "\n" }
  for (g = 0; g < gpus; g++) for (i = 1; i <= n; i++) printf "%s%s", value[order[g], f[i]], i < n ? ", " : "\n"
}' "$D/table"
`
}

// smiUnits are the fields whose values carry a unit.
var smiUnits = []string{"memory.total", "memory.free", "memory.used", "memory.reserved", "power.draw", "power.limit",
	"utilization.gpu", "utilization.memory", "clocks.sm", "clocks.mem"}

func (m *Machine) smiFields(t testing.TB, s SMI) {
	t.Helper()
	driver, cuda := s.Driver, s.CUDA
	if len(m.Host.NVML) > 0 && driver == "" {
		driver, cuda = m.Host.NVML[0].Driver, m.Host.NVML[0].CUDA
	}
	var list, table strings.Builder
	known := smiGPU(0, GPU{}, "")
	// Fields that older releases don't have.
	for f, since := range map[string]int{"compute_cap": 11060, "memory.reserved": 11060, "addressing_mode": 13000, "mig.mode.current": 11000, "mig.mode.pending": 11000} {
		if cuda < since {
			delete(known, f)
		}
	}
	for f := range known {
		fmt.Fprintf(&table, "K %s\n", f)
	}
	for _, f := range smiUnits {
		fmt.Fprintf(&table, "U %s\n", f)
	}
	n := 0
	for _, g := range m.Host.GPUs {
		if g.NoNVML || g.Lost != 0 {
			continue
		}
		fields := smiGPU(n, g, driver)
		maps.Copy(fields, g.SMI)
		for f, v := range fields {
			fmt.Fprintf(&table, "G %d %s %s\n", n, f, v)
		}
		fmt.Fprintf(&list, "GPU %d: %s (UUID: %s)\n", n, g.Name, g.UUID)
		if g.MIG != nil {
			for _, d := range g.MIG.Devices {
				fmt.Fprintf(&list, "  MIG %s  Device  %d: (UUID: %s)\n", strings.TrimPrefix(d.Name, g.Name+" MIG "), d.Slot, d.UUID)
			}
		}
		n++
	}
	m.write(t, "/.fake/smi/table", table.String(), 0o644)
	m.write(t, "/.fake/smi/list", list.String(), 0o644)
	version := fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	m.write(t, "/.fake/smi/version", fmt.Sprintf("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %s\n", driver, driver, driver, version), 0o644)
	label := "CUDA Version"
	if cuda >= 13030 {
		label = "CUDA UMD Version"
	}
	m.write(t, "/.fake/smi/banner", fmt.Sprintf("| NVIDIA-SMI %s    Driver Version: %s    %s: %s |\n", driver, driver, label, version), 0o644)
}

func smiGPU(index int, g GPU, driver string) map[string]string {
	on := func(b bool, yes, no string) string {
		if b {
			return yes
		}
		return no
	}
	mib := func(b uint64) string { return fmt.Sprintf("%d MiB", b>>20) }
	f := map[string]string{
		"index": fmt.Sprint(index), "uuid": g.UUID, "gpu_uuid": g.UUID, "name": g.Name, "gpu_name": g.Name, "pci.bus_id": g.Bus,
		"driver_version": driver, "compute_cap": g.CC, "count": "1",
		"memory.total": mib(g.Memory), "memory.used": mib(g.Used), "memory.reserved": mib(g.Reserved),
		"memory.free":          mib(g.Memory - g.Used - g.Reserved),
		"compute_mode":         map[int]string{0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}[g.ComputeMode],
		"persistence_mode":     on(!g.NoPersistence, "Enabled", "Disabled"),
		"display_attached":     on(g.Display, "Yes", "No"),
		"display_mode":         on(g.Display, "Enabled", "Disabled"),
		"display_active":       on(g.Display, "Enabled", "Disabled"),
		"mig.mode.current":     "[N/A]",
		"mig.mode.pending":     "[N/A]",
		"ecc.mode.current":     on(g.ECC, "Enabled", "[N/A]"),
		"ecc.mode.pending":     on(g.ECC, "Enabled", "[N/A]"),
		"addressing_mode":      []string{"None", "HMM", "ATS"}[g.Addressing],
		"temperature.gpu":      fmt.Sprint(max(g.TemperatureC, 31)),
		"power.draw":           fmt.Sprintf("%.2f W", float64(max(g.PowerMW, 75000))/1000),
		"power.limit":          fmt.Sprintf("%.2f W", float64(max(g.LimitMW, 700000))/1000),
		"pstate":               "P0",
		"utilization.gpu":      "0 %",
		"utilization.memory":   "0 %",
		"clocks.sm":            "345 MHz",
		"clocks.mem":           "2619 MHz",
		"fan.speed":            "[N/A]",
		"gpu_serial":           "[N/A]",
		"vbios_version":        "96.00.00.00.01",
		"driver_model.current": "[N/A]",
	}
	if g.MIG != nil {
		f["mig.mode.current"] = on(g.MIG.Current, "Enabled", "Disabled")
		f["mig.mode.pending"] = on(g.MIG.Pending, "Enabled", "Disabled")
	}
	return f
}
