package gputest

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// data is the content of the file beside a fake library.
type data struct{ lines []string }

func (d *data) set(value any, format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...)+"="+fmt.Sprint(value))
}

func (d *data) text() string { return strings.Join(d.lines, "\n") + "\n" }

func (d *data) faults(faults []Fault) {
	for i, f := range faults {
		d.set(f.Symbol, "fault.%d.symbol", i)
		d.set(f.Call, "fault.%d.call", i)
		d.set(f.Code, "fault.%d.code", i)
		if f.Action != "" {
			d.set(f.Action, "fault.%d.action", i)
		}
	}
}

// codes writes the codes of one kind of symbol for a GPU.
func (d *data) codes(scope string, index int, codes map[string]int, prefix string) {
	names := make([]string, 0, len(codes))
	for name := range codes {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		d.set(codes[name], "%s.%d.code.%s", scope, index, name)
	}
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// capability splits "9.0".
func (g GPU) capability() (major, minor int) {
	a, b, _ := strings.Cut(g.CC, ".")
	major, _ = strconv.Atoi(a)
	minor, _ = strconv.Atoi(b)
	return major, minor
}

// limits are the SM resource's minimum and alignment: the programming guide's table for the compute capability.
func (g GPU) limits() (minimum, alignment int) {
	minimum, alignment = 8, 8
	switch major, _ := g.capability(); {
	case major <= 6:
		minimum, alignment = 1, 1
	case major == 7:
		minimum, alignment = 2, 2
	case major == 8:
		minimum, alignment = 4, 2
	}
	if g.MinPartition != 0 {
		minimum = g.MinPartition
	}
	if g.Alignment != 0 {
		alignment = g.Alignment
	}
	return minimum, alignment
}

// architecture is NVML's number.
func (g GPU) architecture() int {
	switch major, minor := g.capability(); major {
	case 3:
		return 2
	case 5:
		return 3
	case 6:
		return 4
	case 7:
		if minor == 5 {
			return 6
		}
		return 5
	case 8:
		if minor == 9 {
			return 8
		}
		return 7
	case 9:
		return 9
	}
	return 10
}

func bareUUID(uuid string) string {
	return strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(uuid, "GPU-"), "MIG-"), "-", "")
}

// cudaData is what libcuda answers. In MIG mode a process without CUDA_VISIBLE_DEVICES gets the first instance of each GPU.
func (h Host) cudaData(c CUDA) *data {
	d := &data{}
	d.set(c.Version, "version")
	d.set(c.Init, "init")
	n := 0
	for _, g := range h.GPUs {
		if g.NoCUDA || g.Lost != 0 {
			continue
		}
		uuid, name, sms, memory := g.UUID, g.Name, g.SMs, g.Memory
		if g.MIG != nil && g.MIG.Current {
			if len(g.MIG.Devices) == 0 {
				continue
			}
			m := g.MIG.Devices[0]
			uuid, name, sms, memory = m.UUID, m.Name, m.SMs, m.MemoryMiB<<20
		}
		major, minor := g.capability()
		minimum, alignment := g.limits()
		d.set(name, "cuda.%d.name", n)
		d.set(bareUUID(uuid), "cuda.%d.uuid", n)
		d.set(bareUUID(g.UUID), "cuda.%d.parent", n)
		// The driver prints a domain of at least four digits.
		d.set(strings.ToLower(strings.TrimPrefix(g.Bus, "0000")), "cuda.%d.pci", n)
		d.set(memory, "cuda.%d.memory", n)
		d.set(sms, "cuda.%d.sm", n)
		d.set(minimum, "cuda.%d.min", n)
		d.set(alignment, "cuda.%d.alignment", n)
		if g.Workqueues != 0 {
			d.set(g.Workqueues, "cuda.%d.workqueues", n)
		}
		for id, v := range map[int]int{16: sms, 17: truth(g.Display), 18: truth(g.Integrated), 20: g.ComputeMode, 31: 1,
			32: truth(g.ECC), 35: 0, 36: 2619000, 37: 5120, 38: 50 << 20, 39: 2048, 40: 3, 75: major, 76: minor, 78: 1, 83: 1,
			88: truth(g.Integrated), 89: 1, 90: 1, 95: 1, 100: truth(g.Addressing == 2), 102: 1} {
			d.set(v, "cuda.%d.attr.%d", n, id)
		}
		for id, since := range map[int]int{106: 11000, 115: 11020, 120: 11080, 125: 12000, 132: 12010, 133: 12040, 149: 13040, 157: 13040} {
			v := map[int]int{106: 32, 115: 1, 120: truth(major >= 9), 125: 1, 132: truth(major == 9), 133: 0, 149: 1, 157: sms}[id]
			if c.Version >= since {
				d.set(v, "cuda.%d.attr.%d", n, id)
			}
		}
		d.codes("cuda", n, g.Codes, "cu")
		if g.KeepsMemory {
			d.set(1, "usage.sticky")
		}
		n++
	}
	d.set(n, "cuda.count")
	sort.Strings(d.lines)
	d.faults(h.Faults)
	return d
}

// nvmlData is what NVML answers.
func (h Host) nvmlData(lib NVML) *data {
	d := &data{}
	d.set(lib.Init, "init")
	d.set(lib.Driver, "driver")
	d.set("13."+lib.Driver, "nvml")
	d.set(lib.CUDA, "cuda")
	n := 0
	for _, g := range h.GPUs {
		if g.NoNVML {
			continue
		}
		h.nvmlGPU(d, n, g)
		if g.KeepsMemory {
			d.set(1, "usage.sticky")
		}
		n++
	}
	d.set(n, "nvml.count")
	sort.Strings(d.lines)
	d.faults(h.Faults)
	return d
}

func (h Host) nvmlGPU(d *data, n int, g GPU) {
	set := func(value any, key string, args ...any) { d.set(value, "nvml.%d."+key, append([]any{n}, args...)...) }
	or := func(v, def int) int {
		if v != 0 {
			return v
		}
		return def
	}
	if g.Lost != 0 {
		set(g.Lost, "code.nvmlDeviceGetHandleByIndex_v2")
		return
	}
	set(g.UUID, "uuid")
	set(g.Name, "name")
	set(g.Bus, "bus")
	set(g.CC, "cc")
	set(n, "minor")
	set(g.architecture(), "architecture")
	set(or(g.Cores, g.SMs*128), "cores")
	set(g.Memory, "memory")
	set(g.Used, "used")
	set(g.Reserved, "reserved")
	set(g.ComputeMode, "computemode")
	set(truth(!g.NoPersistence), "persistence")
	set(truth(g.Display), "display")
	set(g.Virtualization, "virtualization")
	set(g.Addressing, "addressing")
	set(or(g.PowerMW, 75000), "power")
	set(or(g.LimitMW, 700000), "limit")
	set(123456789, "energy")
	set(or(g.TemperatureC, 31), "temperature")
	set(345, "clock.1")
	set(2619, "clock.2")
	set(1980, "maxclock.1")
	set(3201, "maxclock.2")
	set(0, "pstate")
	set(g.Throttle, "throttle")
	set(0, "busy")
	if g.ECC {
		set("1,1", "ecc")
		set(g.UncorrectedECC, "eccerrors")
		set(fmt.Sprintf("0,%d,%d,%d", truth(g.RemapPending), truth(g.RemapPending), truth(g.RemapFailed)), "remap")
	}
	if g.Fabric != 0 {
		set(g.Fabric, "fabric")
	}
	for kind, list := range map[string][]Process{"compute": g.Compute, "graphics": g.Graphics, "mps": g.MPSClients} {
		set(len(list), "%s.count", kind)
		for i, p := range list {
			set(p.PID, "%s.%d.pid", kind, i)
			set(p.Used, "%s.%d.used", kind, i)
		}
	}
	if g.MIG != nil {
		migData(set, *g.MIG)
	}
	d.codes("nvml", n, g.Codes, "nvml")
}

func migData(set func(any, string, ...any), m MIG) {
	set(fmt.Sprintf("%d,%d", truth(m.Current), truth(m.Pending)), "mig")
	set(m.Max, "migmax")
	for _, p := range m.Profiles {
		set(p.ID, "profile.%d.id", p.Index)
		set(p.Slices, "profile.%d.slices", p.Index)
		set(p.Instances, "profile.%d.instances", p.Index)
		set(p.SMs, "profile.%d.sms", p.Index)
		set(p.MemoryMiB, "profile.%d.mib", p.Index)
		set("MIG "+p.Name, "profile.%d.name", p.Index)
		if m.Current {
			set(p.Remaining, "remaining.%d", p.ID)
		}
		set(p.Instances, "placements.%d", p.ID)
	}
	for _, x := range m.Devices {
		set(x.UUID, "mig.%d.uuid", x.Slot)
		set(x.Name, "mig.%d.name", x.Slot)
		set(x.GI, "mig.%d.gi", x.Slot)
		set(x.CI, "mig.%d.ci", x.Slot)
		set(x.SMs, "mig.%d.sms", x.Slot)
		set(x.Slices, "mig.%d.slices", x.Slot)
		set(x.ComputeSlices, "mig.%d.cislices", x.Slot)
		set(x.MemoryMiB, "mig.%d.mib", x.Slot)
	}
}
