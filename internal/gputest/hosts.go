package gputest

import (
	"fmt"
	"maps"
	"strings"
)

// Hosts returns all hosts that are played, each with a name of its own.
func Hosts() []Host {
	var all []Host
	all = append(all, datacenter()...)
	all = append(all, workstation()...)
	all = append(all, embedded()...)
	all = append(all, contained()...)
	all = append(all, broken()...)
	all = append(all, served()...)
	return all
}

// Named returns the host of this name and panics where there is none.
func Named(name string) Host {
	for _, h := range Hosts() {
		if h.Name == name {
			return h
		}
	}
	panic("no host " + name)
}

// release is a driver: its version, CUDA version, and that of its MPS control program (0 for none).
type release struct {
	driver string
	cuda   int
	mps    int
}

// Driver branches, with the CUDA version that NVIDIA's release notes give them.
var (
	r450 = release{"450.248.02", 11000, 11000}
	r470 = release{"470.256.02", 11040, 11040}
	r525 = release{"525.147.05", 12000, 12000}
	r535 = release{"535.261.03", 12020, 12020}
	r550 = release{"550.163.01", 12040, 12040}
	r555 = release{"555.58.02", 12050, 12050}
	r570 = release{"570.172.08", 12080, 12080}
	r580 = release{"580.159.04", 13000, 13000}
	r590 = release{"590.48.01", 13010, 13010}
	r610 = release{"610.43.02", 13030, 13030}
	r615 = release{"615.71.09", 13040, 13040}
)

// uuid makes a UUID from a number, different from those of other hosts.
func uuid(n int) string { return fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", 0xc0ffee00+n, n) }

// native is a Linux host with a driver and everything that it installs.
func native(name, note string, r release, gpus ...GPU) Host {
	h := Host{
		Name: name, Note: note,
		CUDA: []CUDA{{Version: r.cuda}},
		NVML: []NVML{{Driver: r.driver, CUDA: r.cuda}},
		SMI:  &SMI{},
		GPUs: gpus,
	}
	if r.mps != 0 {
		h.MPS = &MPS{Version: r.mps}
	}
	h.Files = map[string]string{
		"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " + r.driver + "  Release Build  (dvs-builder@U22)\nGCC version:  gcc version 12.3.0\n",
		"/sys/module/nvidia/version":  r.driver + "\n",
		"/dev/nvidiactl":              "",
		"/dev/nvidia-uvm":             "",
	}
	h.base("6.8.0-60-generic", "Ubuntu", "24.04", 263828508)
	for i, g := range gpus {
		h.Files[fmt.Sprintf("/dev/nvidia%d", i)] = ""
		h.pci(g)
		h.Links[pciFolder(g)+"/driver"] = "../../../../bus/pci/drivers/nvidia"
		h.Files["/proc/driver/nvidia/gpus/"+strings.ToLower(strings.TrimPrefix(g.Bus, "0000"))+"/information"] = fmt.Sprintf(
			"Model: \t\t %s\nIRQ:   \t\t 117\nGPU UUID: \t %s\nVideo BIOS: \t 96.00.00.00.01\nBus Type: \t PCIe\nBus Location: \t %s\nDevice Minor: \t %d\n",
			g.Name, g.UUID, strings.ToLower(strings.TrimPrefix(g.Bus, "0000")), i)
	}
	return h
}

// base writes what every Linux has.
func (h *Host) base(kernel, id, version string, memoryKB int) {
	if h.Files == nil {
		h.Files = make(map[string]string)
	}
	maps.Copy(h.Files, map[string]string{
		"/proc/version":              "Linux version " + kernel + " (builder@host) (gcc 13.3.0) #1 SMP PREEMPT_DYNAMIC\n",
		"/proc/sys/kernel/osrelease": kernel + "\n",
		"/proc/meminfo":              fmt.Sprintf("MemTotal:       %d kB\nMemFree:        %d kB\nMemAvailable:   %d kB\n", memoryKB, memoryKB/2, memoryKB/2),
		"/proc/1/cgroup":             "0::/init.scope\n",
		"/proc/self/cgroup":          "0::/user.slice/user-1000.slice/session-1.scope\n",
		"/etc/os-release":            fmt.Sprintf("ID=%s\nNAME=\"%s\"\nVERSION_ID=\"%s\"\nPRETTY_NAME=\"%s %s\"\n", strings.ToLower(id), id, version, id, version),
		"/etc/hostname":              "node-7\n",
		"/proc/self/uid_map":         "         0          0 4294967295\n",
		"/proc/self/mountinfo":       "29 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n",
	})
	if h.Links == nil {
		h.Links = make(map[string]string)
	}
	h.Links["/proc/self/ns/pid"] = "pid:[4026531836]" // the first namespace's
}

func pciFolder(g GPU) string {
	return "/sys/bus/pci/devices/" + strings.ToLower(strings.TrimPrefix(g.Bus, "0000"))
}

// pci writes a GPU's place in /sys, where the domain has four digits.
func (h *Host) pci(g GPU) {
	dir := pciFolder(g)
	h.Files[dir+"/vendor"] = "0x10de\n"
	h.Files[dir+"/class"] = "0x030200\n"
	h.Files[dir+"/device"] = "0x2335\n"
}

// process writes a process that holds a GPU: its executable is a link target, " (deleted)" at its end where it was unlinked.
func (h *Host) process(pid int, executable string, line ...string) {
	dir := fmt.Sprintf("/proc/%d", pid)
	name := line[0][strings.LastIndexByte(line[0], '/')+1:]
	h.Links[dir+"/exe"] = executable
	h.Files[dir+"/cmdline"] = strings.Join(line, "\x00") + "\x00"
	h.Files[dir+"/comm"] = name[:min(15, len(name))] + "\n"
	h.Files[dir+"/stat"] = fmt.Sprintf("%d (%s) S 1 %d %d 0 -1\n", pid, name[:min(15, len(name))], pid, pid)
	h.Files[dir+"/status"] = fmt.Sprintf("Name:\t%s\nState:\tS (sleeping)\nPid:\t%d\nPPid:\t1\nUid:\t1000\t1000\t1000\t1000\n", name[:min(15, len(name))], pid)
}

// with applies changes to a host.
func (h Host) with(changes ...func(*Host)) Host {
	for _, c := range changes {
		c(&h)
	}
	return h
}

// h200 and those below make a GPU whose UUID and bus come from a number.
func h200(n int) GPU {
	return GPU{UUID: uuid(n), Name: "NVIDIA H200", Bus: fmt.Sprintf("00000000:%02X:00.0", 6+n%64), CC: "9.0", SMs: 132, Memory: 150754820096,
		Reserved: 600 << 20, ECC: true, LimitMW: 700000, Fabric: 3, MIG: &MIG{Max: 7, Profiles: profiles(h200Profiles)}}
}

func h100(n int) GPU {
	g := h200(n)
	g.Name, g.Memory = "NVIDIA H100 80GB HBM3", 85520809984
	g.MIG = &MIG{Max: 7, Profiles: profiles(h100Profiles)}
	return g
}

func a100(n int) GPU {
	return GPU{UUID: uuid(n), Name: "NVIDIA A100-SXM4-40GB", Bus: fmt.Sprintf("00000000:%02X:00.0", 7+n%64), CC: "8.0", SMs: 108, Memory: 42949672960,
		Cores: 108 * 64, ECC: true, LimitMW: 400000, MIG: &MIG{Max: 7, Profiles: profiles(a100Profiles)}}
}

// shape is a MIG profile: NVML's index, the profile's id on the device, slices, how many fit, SMs, and MiB.
type shape struct {
	name                                  string
	index, id, slices, instances, sms, mi int
}

// Profiles by the names of NVIDIA's MIG user guide; where it shows no output of `nvidia-smi mig -lgip` for the device, SMs and
// memory are plausible only.
var (
	h200Profiles = []shape{
		{"1g.18gb", 0, 19, 1, 7, 16, 16384},
		{"1g.18gb+me", 7, 20, 1, 1, 16, 16384},
		{"1g.35gb", 9, 15, 1, 4, 26, 33280},
		{"2g.35gb", 1, 14, 2, 3, 32, 33280},
		{"3g.71gb", 2, 9, 3, 2, 60, 71168},
		{"4g.71gb", 3, 5, 4, 1, 64, 71168},
		{"7g.141gb", 4, 0, 7, 1, 132, 142848},
	}
	gh200Profiles = []shape{
		{"1g.12gb", 0, 19, 1, 7, 16, 11264},
		{"1g.12gb+me", 7, 20, 1, 1, 16, 11264},
		{"1g.24gb", 9, 15, 1, 4, 26, 23552},
		{"2g.24gb", 1, 14, 2, 3, 32, 23552},
		{"3g.48gb", 2, 9, 3, 2, 60, 47616},
		{"4g.48gb", 3, 5, 4, 1, 64, 47616},
		{"7g.96gb", 4, 0, 7, 1, 132, 95232},
	}
	b200Profiles = []shape{
		{"1g.23gb", 0, 19, 1, 7, 18, 21888},
		{"1g.23gb+me", 7, 20, 1, 1, 18, 21888},
		{"1g.45gb", 9, 15, 1, 4, 30, 45056},
		{"2g.45gb", 1, 14, 2, 3, 36, 45056},
		{"3g.90gb", 2, 9, 3, 2, 70, 90880},
		{"4g.90gb", 3, 5, 4, 1, 72, 90880},
		{"7g.180gb", 4, 0, 7, 1, 148, 181760},
	}
	h100Profiles = []shape{
		{"1g.10gb", 0, 19, 1, 7, 16, 9984},
		{"1g.10gb+me", 7, 20, 1, 1, 16, 9984},
		{"1g.20gb", 9, 15, 1, 4, 26, 20096},
		{"2g.20gb", 1, 14, 2, 3, 32, 20096},
		{"3g.40gb", 2, 9, 3, 2, 60, 40448},
		{"4g.40gb", 3, 5, 4, 1, 64, 40448},
		{"7g.80gb", 4, 0, 7, 1, 132, 81152},
	}
	a100Profiles = []shape{
		{"1g.5gb", 0, 19, 1, 7, 14, 4864},
		{"1g.5gb+me", 7, 20, 1, 1, 14, 4864},
		{"2g.10gb", 1, 14, 2, 3, 28, 9856},
		{"3g.20gb", 2, 9, 3, 2, 42, 19968},
		{"4g.20gb", 3, 5, 4, 1, 56, 19968},
		{"7g.40gb", 4, 0, 7, 1, 98, 40192},
	}
	pro6000Profiles = []shape{
		{"1g.24gb", 0, 14, 1, 4, 46, 24192},
		{"2g.48gb", 1, 5, 2, 2, 94, 48512},
		{"4g.96gb", 3, 0, 4, 1, 188, 97280},
	}
)

// profiles makes a device's profiles, none of them in use.
func profiles(shapes []shape) []Profile {
	list := make([]Profile, len(shapes))
	for i, s := range shapes {
		list[i] = Profile{Index: s.index, ID: s.id, Slices: s.slices, Instances: s.instances, SMs: s.sms, MemoryMiB: uint64(s.mi),
			Name: s.name, Remaining: s.instances}
	}
	return list
}
