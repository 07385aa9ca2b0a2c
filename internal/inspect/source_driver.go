package inspect

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"cotenant/internal/observe"
)

const (
	vendorNVIDIA = "0x10de"
	pciFolder    = "/sys/bus/pci/devices"
)

// pci lists display controllers of NVIDIA. Reading these attributes doesn't wake a suspended device, as its configuration
// space would.
func pci(t tree, os string) PCI {
	p := PCI{Devices: []PCIDevice{}}
	if notLinux(&p.Source, os) {
		return p
	}
	names, err := t.names(pciFolder)
	if err != nil {
		status, reason := statusOf(err)
		p.add(said(pciFolder, reason))
		p.end(status, pciFolder+": "+reason)
		return p
	}
	for _, name := range names {
		dir := path.Join(pciFolder, name)
		class := t.line(dir + "/class")
		if t.line(dir+"/vendor") != vendorNVIDIA || !strings.HasPrefix(class, "0x03") {
			continue
		}
		d := PCIDevice{BusID: busID(name), Device: t.line(dir + "/device"), Class: class,
			Driver: path.Base(t.link(dir + "/driver")), Runtime: t.line(dir + "/power/runtime_status")}
		if d.Driver == "." {
			d.Driver = ""
		}
		if of := t.link(dir + "/physfn"); of != "" {
			d.VirtualOf = busID(path.Base(of))
		}
		p.Devices = append(p.Devices, d)
		driver := d.Driver
		if driver == "" {
			driver = "none"
		}
		p.add(said(dir, "device "+d.Device+" class "+d.Class+" driver "+driver))
	}
	if len(p.Devices) == 0 {
		p.add(said(pciFolder, "no display controller of vendor "+vendorNVIDIA))
	}
	p.end(observe.SupportedProven, "")
	return p
}

var (
	busForm     = regexp.MustCompile(`^([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])$`)
	mpsBusForm  = regexp.MustCompile(`^([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2})\.([0-9A-Fa-f]{2})\.([0-9A-Fa-f]{1,2})$`)
	versionForm = regexp.MustCompile(`\b(\d{3,4}\.\d+(\.\d+)?)\b`)
)

// busID brings a PCI place in the form 0000:06:00.0, whatever its domain's number of digits and case; a text of another form
// is returned as it is.
func busID(s string) string {
	m := busForm.FindStringSubmatch(s)
	if m == nil {
		if m = mpsBusForm.FindStringSubmatch(s); m == nil {
			return s
		}
		m[4] = m[4][len(m[4])-1:]
	}
	domain := strings.ToLower(strings.TrimLeft(m[1], "0"))
	if len(domain) < 4 {
		domain = strings.Repeat("0", 4-len(domain)) + domain
	}
	return domain + ":" + strings.ToLower(m[2]+":"+m[3]) + "." + m[4]
}

// driverFiles reads what the kernel module shows.
func driverFiles(t tree, os string) DriverFiles {
	d := DriverFiles{GPUs: []DriverGPU{}, Devices: []string{}}
	if notLinux(&d.Source, os) {
		return d
	}
	d.Devices = deviceNodes(t)
	d.Loaded = t.exists("/sys/module/nvidia")
	const version = "/proc/driver/nvidia/version"
	text, err := t.read(version)
	if err != nil {
		status, reason := statusOf(err)
		d.add(said(version, reason), said("/sys/module/nvidia", presence(d.Loaded)), said("/dev/nvidia*", strings.Join(d.Devices, " ")))
		if status == observe.Unavailable {
			reason = "the kernel module nvidia is not loaded, or /proc doesn't show it here"
		}
		d.end(status, reason)
		return d
	}
	first, _, _ := strings.Cut(text, "\n")
	d.Open = strings.Contains(first, "Open Kernel Module")
	if m := versionForm.FindStringSubmatch(first); m != nil {
		d.Version = m[1]
	}
	d.add(said(version, first), said("/sys/module/nvidia", presence(d.Loaded)), said("/dev/nvidia*", strings.Join(d.Devices, " ")))
	const gpus = "/proc/driver/nvidia/gpus"
	names, _ := t.names(gpus)
	for _, name := range names {
		file := path.Join(gpus, name, "information")
		text, err := t.read(file)
		if err != nil {
			_, reason := statusOf(err)
			d.add(said(file, reason))
			continue
		}
		g := DriverGPU{BusID: busID(name)}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(line, ":")
			value = strings.TrimSpace(value)
			switch strings.TrimSpace(key) {
			case "Model":
				g.Model = value
			case "GPU UUID":
				// A GPU that was never initialised shows question marks.
				if !strings.Contains(value, "?") {
					g.UUID = value
				}
			case "GPU Excluded":
				g.Excluded = value == "Yes"
			}
		}
		d.GPUs = append(d.GPUs, g)
		d.add(said(file, g.Model+" "+g.UUID))
	}
	d.end(observe.SupportedProven, "")
	return d
}

func deviceNodes(t tree) []string {
	names, err := t.names("/dev")
	if err != nil {
		return []string{}
	}
	return slices.DeleteFunc(names, func(n string) bool {
		return !strings.HasPrefix(n, "nvidia") && !strings.HasPrefix(n, "nvhost-gpu") && n != "nvgpu" && n != "dxg"
	})
}

// processes reads the executables of the pids that hold GPUs.
func processes(t tree, os, pidNamespace string, pids []uint32) Processes {
	p := Processes{ByPID: make(map[uint32]Process)}
	if notLinux(&p.Source, os) {
		return p
	}
	denied := 0
	for _, pid := range pids {
		link := "/proc/" + utoa(pid) + "/exe"
		to := t.link(link)
		x := Process{}
		switch {
		case pidNamespace == "own":
			x.Executable = observe.None[string]("/proc/PID/exe", 0, "the pid is the host's, and this process has a pid namespace of its own")
		case to != "":
			path, deleted := strings.CutSuffix(to, " (deleted)")
			x = Process{Executable: observe.Got("/proc/PID/exe", path), Deleted: deleted}
		case t.exists("/proc/" + utoa(pid)):
			denied++
			x.Executable = observe.None[string]("/proc/PID/exe", 0, "permission denied: it is another user's process")
		default:
			x.Executable = observe.None[string]("/proc/PID/exe", 0, "no such process here")
		}
		p.ByPID[pid] = x
	}
	p.end(observe.SupportedProven, "")
	if denied > 0 {
		p.end(observe.PermissionDenied, "the executables of other users' processes can't be read; root can")
	}
	return p
}
