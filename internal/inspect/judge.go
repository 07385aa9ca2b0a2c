package inspect

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cotenant/internal/cuda/query"
	mps "cotenant/internal/mps/query"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
	"cotenant/internal/topology"
)

// Judge makes the report. It is pure: the same facts give the same report.
func Judge(f *Facts) *Report {
	r := &Report{SchemaVersion: SchemaVersion, Operation: Operation, ObservedRoot: f.Root, Program: f.Program, Host: f.host(), GPUs: []GPU{},
		Sources: f.sources(), Findings: []Finding{}, Disagreements: []Disagreement{},
		Proves: []string{
			"what each source said when it was asked, and which sources did not answer",
			"that no context, daemon, server, mode, partition or container was made or changed by this program",
		},
		ProvesNot: []string{
			"that a green context, a daemon or a partition can be created here",
			"that SM sets would be disjoint, or that cleaning up would be complete",
			"that a container passes the mechanism through, unless this ran in that container",
			"that any mechanism protects latency",
		}}
	all := units(f)
	for _, u := range all {
		g := f.gpu(u)
		g.Mechanisms = subject{f, u, &g}.verdicts()
		r.GPUs = append(r.GPUs, g)
	}
	r.Disagreements = f.disagreements(all)
	r.Findings = f.findings(all, r)
	return r
}

// Bind adds the declared roles to the report, by UUID.
func (r *Report) Bind(t *topology.Topology) {
	var seen []topology.Observed
	for _, g := range r.GPUs {
		if g.UUID != "" {
			seen = append(seen, topology.Observed{UUID: g.UUID, Name: g.Name.Or("")})
		}
		for _, m := range g.MIG.Devices {
			if uuid := m.UUID.Or(""); uuid != "" {
				seen = append(seen, topology.Observed{UUID: uuid, Name: m.Name.Or("")})
			}
		}
	}
	b := t.Bind(seen)
	r.Topology = &b
	for i := range r.GPUs {
		g := &r.GPUs[i]
		for _, role := range b.Roles {
			if role.State == topology.Absent || role.Host != b.Host {
				continue
			}
			if role.UUID == g.UUID || slices.ContainsFunc(g.MIG.Devices, func(m nvml.MIGDevice) bool { return m.UUID.Or("") == role.UUID }) {
				g.Roles = append(g.Roles, role.Role)
			}
		}
	}
}

func (f *Facts) host() Host {
	h := Host{OS: f.OS, KernelRelease: f.Kernel.Release, Platform: f.platform(), Sandbox: "none", Container: f.Container.Kind,
		UserNamespace: f.Container.UserNamespace, PIDNamespace: f.Kernel.PIDNamespace, Environment: f.Environment.Variables,
		CDI: f.CDI.Specs, Toolkits: f.NVCC.Toolkits, NVCC: f.NVCC.Version, Packages: f.Frameworks.Packages,
		WSLFiles: f.WSL.Files, TegraRelease: f.Tegra.Release, TegraModel: f.Tegra.Model, MPS: f.mpsHost()}
	if f.Kernel.GVisor {
		h.Sandbox = "gvisor"
	}
	h.Driver = Driver{KernelModule: f.Driver.Version, Open: f.Driver.Open, Devices: f.Driver.Devices,
		NVML: observe.None[string]("nvmlSystemGetDriverVersion", 0, f.NVML.Reason), SMI: observe.None[string]("nvidia-smi driver_version", 0, f.SMI.Reason)}
	h.CUDA = CUDA{Driver: f.CUDA.DriverVersion, NVML: observe.None[int]("nvmlSystemGetCudaDriverVersion_v2", 0, f.NVML.Reason),
		Runtime: f.Runtime.Version, Library: f.CUDA.Library, Symbols: f.CUDA.Symbols, RuntimePath: f.shown(f.Runtime.Path),
		RuntimeSyms: f.Runtime.Symbols, MPSBypassed: f.CUDA.MPSBypassed}
	if s := f.NVML.System; s != nil {
		h.Driver.NVML, h.CUDA.NVML = s.DriverVersion, s.CUDAVersion
	}
	for _, row := range f.SMI.Rows {
		if row.Driver.OK() {
			h.Driver.SMI = row.Driver
			break
		}
	}
	if f.CUDA.Library != nil {
		l := *f.CUDA.Library
		l.Name, l.Path, l.Preload = f.shown(l.Name), f.shown(l.Path), observe.Clip(l.Preload)
		l.Mapped = nil
		for _, m := range f.CUDA.Library.Mapped {
			l.Mapped = append(l.Mapped, f.shown(m))
		}
		h.CUDA.Library = &l
	}
	if f.Docker.Version != "" {
		h.Docker = &DockerHost{f.Docker.Version, f.Docker.APIVersion, f.Docker.OS, f.Docker.Runtimes, f.Docker.Default, f.Docker.CDIFolders, f.Docker.Discovered, f.Docker.SecurityOpt}
	}
	if len(f.Toolkit.Programs) > 0 {
		h.Toolkit = &ToolkitHost{f.Toolkit.Version, f.Toolkit.Mode, f.Toolkit.Programs}
	}
	for _, list := range []*[]CDISpec{&h.CDI} {
		if *list == nil {
			*list = []CDISpec{}
		}
	}
	if h.Packages == nil {
		h.Packages = []Package{}
	}
	if h.Toolkits == nil {
		h.Toolkits = []CUDAToolkit{}
	}
	if h.Driver.Devices == nil {
		h.Driver.Devices = []string{}
	}
	return h
}

func (f *Facts) shown(p string) string { return tree{f.Root}.shown(p) }

func (f *Facts) platform() string {
	switch {
	case f.OS != "linux":
		return f.OS
	case f.WSL.Present:
		return "wsl2"
	case f.Tegra.Present:
		return "tegra"
	}
	return "native"
}

func (f *Facts) mpsHost() MPS {
	m := MPS{Control: f.shown(f.MPS.Control), Version: f.MPS.Version, Daemons: []MPSDaemon{}, Servers: len(f.MPS.Servers), Folders: []MPSFolder{}, Partitions: f.MPS.Partitions}
	for _, d := range f.MPS.Daemons {
		// A daemon that goes into the background leaves a zombie until its parent looks; a pid file that names one is shown
		// by its folder.
		if d.State == "Z" {
			continue
		}
		x := MPSDaemon{UID: d.UID, Mode: d.Mode, Pipe: d.Pipe, VisibleDevices: d.VisibleDevices, ActivePercentage: d.ActivePercentage}
		if f.Volatile {
			x.PID, x.State = d.PID, d.State
		}
		m.Daemons = append(m.Daemons, x)
	}
	for _, d := range f.MPS.Folders {
		x := MPSFolder{Path: d.Path, Why: d.Why, Exists: d.Exists, Denied: d.Denied, Owner: d.Owner, Socket: d.Socket, PIDState: d.PIDState, TooLong: d.TooLong}
		for _, a := range f.MPS.Answers {
			if a.Folder == d.Path && (a.Input == mps.ServerList.String() || a.Input == mps.V3ServerList.String()) {
				x.Answer = a.Kind
			}
		}
		m.Folders = append(m.Folders, x)
	}
	return m
}

var number = regexp.MustCompile(`\b\d+\b`)

// mask replaces the pids of MPS processes in a text, since they change from run to run.
func (f *Facts) mask(text string) string {
	if f.Volatile {
		return text
	}
	pids := make(map[string]bool)
	for _, list := range [][]mps.Daemon{f.MPS.Daemons, f.MPS.Servers} {
		for _, d := range list {
			pids[strconv.Itoa(d.PID)] = true
		}
	}
	for _, a := range f.MPS.Answers {
		switch a.Input {
		case mps.ServerList.String():
			list, _ := mps.ParseServerList(a.Full())
			for _, pid := range list {
				pids[strconv.Itoa(pid)] = true
			}
		case mps.Processes.String():
			rows, _ := mps.ParseProcesses(a.Full())
			for _, row := range rows {
				pids[strconv.Itoa(row.PID)], pids[strconv.Itoa(row.Server)] = true, true
			}
		}
	}
	return number.ReplaceAllStringFunc(text, func(n string) string {
		if pids[n] {
			return "PID"
		}
		return n
	})
}

// sources says how each answered, by name.
func (f *Facts) sources() map[string]Source {
	s := map[string]Source{
		"kernel": f.Kernel.Source, "container": f.Container.Source, "wsl": f.WSL.Source, "tegra": f.Tegra.Source, "pci": f.PCI.Source,
		"driver_files": f.Driver.Source, "nvidia_smi": f.SMI.Source, "processes": f.Processes.Source, "docker": f.Docker.Source,
		"cdi": f.CDI.Source, "container_toolkit": f.Toolkit.Source, "nvcc": f.NVCC.Source, "frameworks": f.Frameworks.Source,
		"nvml":      {Status: f.NVML.Status, Reason: f.NVML.Reason, Evidence: f.nvmlEvidence(), SideEffects: f.NVML.SideEffects},
		"libcuda":   {Status: f.CUDA.Status, Reason: f.CUDA.Reason, Evidence: f.libcudaEvidence(), SideEffects: f.CUDA.SideEffects},
		"libcudart": {Status: f.Runtime.Status, Reason: f.Runtime.Reason, SideEffects: f.Runtime.SideEffects},
		"gvisor":    f.gvisor(),
	}
	rt := s["libcudart"]
	if f.Runtime.Path != "" {
		rt.add(said("dlopen libcudart", f.shown(f.Runtime.Path)), valueEvidence(f.Runtime.Version, plain))
	}
	s["libcudart"] = rt
	s["mps_control"] = f.mpsSource()
	for name, x := range s {
		if x.Status == "" {
			x.end(observe.Unknown, "not asked")
		}
		if x.Evidence == nil {
			x.Evidence = []Evidence{}
		}
		for i := range x.Evidence {
			x.Evidence[i].Call, x.Evidence[i].Text = f.unrooted(x.Evidence[i].Call), f.unrooted(x.Evidence[i].Text)
		}
		x.Reason = f.unrooted(x.Reason)
		if x.SideEffects == nil {
			x.SideEffects = []string{}
		}
		if f.Volatile {
			x.WallUS = f.WallUS[name]
		}
		s[name] = x
	}
	return s
}

// unrooted takes a test's root out of a text.
func (f *Facts) unrooted(text string) string {
	if f.Root == "" {
		return text
	}
	return strings.ReplaceAll(text, strings.TrimSuffix(f.Root, "/"), "")
}

func (f *Facts) gvisor() Source {
	s := Source{Status: f.Kernel.Status, Reason: f.Kernel.Reason}
	if f.Kernel.Status == observe.SupportedProven {
		s.add(said("/proc/sentry-meminfo", presence(f.Kernel.GVisor)))
		if !f.Kernel.GVisor {
			s.end(observe.Unavailable, "this kernel is not gVisor's")
		}
	}
	return s
}

func (f *Facts) nvmlEvidence() []Evidence {
	var e []Evidence
	for _, a := range f.NVML.Attempts {
		text := a.Path
		if text == "" {
			text = "not opened"
		}
		e = append(e, said("dlopen libnvidia-ml", text))
		if a.Init != nil {
			e = append(e, returned(a.Init.Name, a.Init.Code, a.Init.Symbol))
		}
		if a.Calling != "" {
			e = append(e, said(a.Calling, string(a.Outcome)+" in this call"))
		}
		if a.Noise != "" && f.NVML.Status != observe.SupportedProven {
			e = append(e, said("output", a.Noise))
		}
	}
	if s := f.NVML.System; s != nil {
		e = append(e, valueEvidence(s.DriverVersion, plain), valueEvidence(s.CUDAVersion, plain))
	}
	if len(f.NVML.Attempts) > 0 {
		e = append(e, valueEvidence(f.NVML.DeviceCount, plain))
	}
	return e
}

func (f *Facts) libcudaEvidence() []Evidence {
	e := cudaEvidence(f.CUDA)
	for _, a := range f.CUDA.Attempts {
		if a.Noise != "" && f.CUDA.Status != observe.SupportedProven {
			e = append(e, said("output", a.Noise))
		}
	}
	if f.CUDA.Library != nil {
		e = append(e, valueEvidence(f.CUDA.DriverVersion, func(v int) string { return query.FormatVersion(v) }), valueEvidence(f.CUDA.DeviceCount, plain))
		if who := f.interposed(); who != "" {
			e = append(e, said("/proc/self/maps", who))
		}
	}
	return e
}

func (f *Facts) mpsSource() Source {
	s := Source{Status: f.MPS.Status, Reason: f.MPS.Reason, SideEffects: f.MPS.SideEffects}
	for _, a := range f.MPS.Answers {
		call := a.Input
		if fields := strings.Fields(call); len(fields) == 2 && !f.Volatile {
			call = f.mask(call)
		}
		if a.Folder != "" {
			call += " (" + a.Folder + ")"
		}
		text := f.mask(a.Text)
		if a.Input == mps.Processes.String() && a.Kind == mps.Answered && !f.Volatile {
			rows, _ := mps.ParseProcesses(a.Full())
			text = plural(len(rows), "client")
		}
		s.add(returned(observe.Clip(call), int32(a.ExitCode), string(a.Kind)+": "+text))
	}
	return s
}
