package inspect

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"cotenant/internal/cuda/query"
	mps "cotenant/internal/mps/query"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
)

// FloorMPSv3 is the control program's version that first speaks protocol 3.
const FloorMPSv3 = 13040

const mpsShared = "MPS partitions SMs at most: L2 and bandwidth stay shared, memory only by a limit that clients accept, and a fault of one client can end others"

// daemon is one MPS daemon with its pipe folder and what it answered.
type daemon struct {
	process *mps.Daemon // nil where /proc doesn't show it
	folder  *mps.Folder // nil where its folder isn't known
	list    *mps.Answer // get_server_list; nil where it wasn't asked
	v3      *mps.Answer // `server list` of protocol 3
}

// answers reports whether the daemon spoke.
func (d daemon) answers() bool {
	good := func(a *mps.Answer) bool { return a != nil && (a.Kind == mps.Answered || a.Kind == mps.Empty) }
	return good(d.list) || good(d.v3)
}

func (d daemon) protocol3() bool {
	return d.v3 != nil && d.v3.Kind == mps.Answered || d.process != nil && d.process.Mode.Protocol == 3
}

func (d daemon) static() bool { return d.process != nil && d.process.Mode.Static }

// owner is the daemon's user id; ok is false where it isn't known.
func (d daemon) owner() (int, bool) {
	if d.process != nil {
		if uid, ok := d.process.UID.Get(); ok {
			return uid, true
		}
	}
	if d.folder != nil {
		return d.folder.Owner.Get()
	}
	return 0, false
}

func (d daemon) where() string {
	switch {
	case d.folder != nil:
		return d.folder.Path
	case d.process != nil:
		return d.process.Pipe.Or("an unknown folder")
	}
	return "an unknown folder"
}

// daemons joins processes, pipe folders and answers. A folder without a daemon is left out.
func (f *Facts) daemons() []daemon {
	var found []daemon
	used := make(map[int]bool)
	for i := range f.MPS.Folders {
		dir := &f.MPS.Folders[i]
		d := daemon{folder: dir}
		for j := range f.MPS.Answers {
			a := &f.MPS.Answers[j]
			if a.Folder != dir.Path {
				continue
			}
			switch a.Input {
			case mps.ServerList.String():
				d.list = a
			case mps.V3ServerList.String():
				d.v3 = a
			}
		}
		for j := range f.MPS.Daemons {
			p := &f.MPS.Daemons[j]
			if !used[p.PID] && p.State != "Z" && owns(p, dir) {
				d.process = p
				used[p.PID] = true
				break
			}
		}
		if d.process != nil || d.answers() || dir.Denied && dir.Exists || d.list != nil && (d.list.Kind == mps.Hung || d.list.Kind == mps.Refused) {
			found = append(found, d)
		}
	}
	for j := range f.MPS.Daemons {
		if p := &f.MPS.Daemons[j]; !used[p.PID] && p.State != "Z" {
			found = append(found, daemon{process: p})
		}
	}
	return found
}

func owns(p *mps.Daemon, dir *mps.Folder) bool {
	if pipe, ok := p.Pipe.Get(); ok {
		return path.Clean(pipe) == dir.Path
	}
	if pid, ok := dir.PID.Get(); ok {
		return pid == p.PID
	}
	return p.Pipe.Reason == "not set" && dir.Path == "/tmp/nvidia-mps"
}

// serves reports whether the daemon may serve this GPU: it doesn't where it was started for others by UUID.
func (c subject) serves(d daemon) bool {
	if d.process == nil {
		return true
	}
	list, ok := d.process.VisibleDevices.Get()
	if !ok || list == "" {
		return true
	}
	byUUID := false
	for _, e := range strings.Split(list, ",") {
		e = strings.TrimSpace(e)
		if strings.HasPrefix(e, "GPU-") || strings.HasPrefix(e, "MIG-") {
			byUUID = true
			if strings.HasPrefix(c.g.UUID, e) || strings.HasPrefix(e, "MIG-") {
				return true
			}
		}
	}
	return !byUUID
}

// mpsPlace refuses places where MPS can't be; ok is true where it can.
func (c subject) mpsPlace(v Verdict, leastCC int) (_ Verdict, ok bool) {
	f := c.f
	if f.OS != "linux" {
		next := "run Linux on this machine"
		if f.OS == "windows" {
			next = "use green contexts inside one process, or run Linux on this machine"
		}
		return v.as(observe.BlockedByEnvironment, "MPS exists on Linux and QNX, this is "+f.OS, next), false
	}
	if v, ok = c.usable(v); !ok {
		return v, false
	}
	if v, bad := c.prohibited(v); bad {
		return v, false
	}
	cc := capability(c.g.ComputeCapability)
	switch {
	case cc > 0 && cc < leastCC:
		return v.as(observe.Unsupported, fmt.Sprintf("compute capability %s, %d.%d is needed", c.g.ComputeCapability.Or(""), leastCC/10, leastCC%10),
			"use time-slicing on this GPU", valueEvidence(c.g.ComputeCapability, plain)), false
	case f.Kernel.GVisor:
		return v.as(observe.BlockedByEnvironment, "gVisor's sandbox doesn't pass on what MPS needs of the host", "run the workload outside gVisor", said("/proc/sentry-meminfo", "exists")), false
	case f.WSL.Present:
		return v.as(observe.Unknown, "no NVIDIA document establishes MPS under WSL2, and nothing here shows it", "share by green contexts or time-slicing, or run Linux on this machine", said("/dev/dxg", presence(f.WSL.DXG))), false
	case c.g.Virtualization.Or("") == "vgpu_guest":
		return v.as(observe.Unknown, "a vGPU guest: whether MPS works depends on the host's vGPU software and profile", "ask the host's administrator, then try it: nothing here can tell",
			valueEvidence(c.g.Virtualization, plain)), false
	case f.pipeTooLong() != "":
		return v.as(observe.BlockedByEnvironment, "CUDA_MPS_PIPE_DIRECTORY is set to a path that is too long for a socket: programs with this environment find no daemon", "set it to a path of at most 75 bytes, for the daemon and its clients",
			said("environment CUDA_MPS_PIPE_DIRECTORY", f.pipeTooLong())), false
	case f.MPS.Status == observe.Hung:
		return v.as(observe.Hung, f.MPS.Reason, "look at control.log of the daemon; end the daemon if it no longer answers", c.mpsEvidence()...), false
	}
	v, bad := c.cudaBroken(v)
	return v, !bad
}

// pipeTooLong returns the pipe folder of our environment where its path is too long for a socket.
func (f *Facts) pipeTooLong() string {
	for _, d := range f.MPS.Folders {
		if d.TooLong && d.Why == "environment" {
			return d.Path
		}
	}
	return ""
}

func (c subject) mpsEvidence() []Evidence {
	e := []Evidence{valueEvidence(c.f.MPS.Version, plain)}
	e[0].Call = "nvidia-cuda-mps-control -v"
	return e
}

// noControl says what the absence of the control program means here.
func (c subject) noControl(v Verdict) Verdict {
	reason, next := "the control program nvidia-cuda-mps-control is not installed", "install the driver's compute utilities (package nvidia-compute-utils or the driver's own installer)"
	status := observe.Unavailable
	for _, d := range c.f.MPS.Folders {
		if d.Socket {
			return v.as(observe.Unknown, "a control socket lies in "+d.Path+", and there is no control program here to ask it",
				"ask where the daemon runs; in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility and the host's IPC namespace", said(d.Path+"/control", "exists"))
		}
	}
	if c.f.Tegra.Present {
		next = "install a JetPack that brings it, where NVIDIA offers one for this board"
	}
	if c.f.inContainer() {
		reason = "the control program is not in this container; that says nothing of the host"
		next = "inspect on the host, or set NVIDIA_DRIVER_CAPABILITIES=compute,utility for this container"
	}
	if c.f.MPS.Status != observe.Unavailable && c.f.MPS.Status != "" {
		status, reason = c.f.MPS.Status, c.f.MPS.Reason
	}
	return v.as(status, reason, next, said("nvidia-cuda-mps-control", "not on PATH or in the usual folders"))
}

// blockedDaemon judges daemons that exist and can't be used by us; ok is true where none stands in the way.
func (c subject) blockedDaemon(v Verdict) (_ Verdict, ok bool) {
	for _, d := range c.f.daemons() {
		if !c.serves(d) || d.answers() {
			continue
		}
		e := []Evidence{said(d.where(), daemonText(d))}
		if d.list != nil {
			e = append(e, said("get_server_list", string(d.list.Kind)+": "+c.f.mask(d.list.Text)))
		}
		uid, known := d.owner()
		switch {
		case d.list != nil && d.list.Kind == mps.Hung:
			return v.as(observe.Hung, "the MPS daemon of "+d.where()+" did not answer", "look at its control.log; end the daemon if it no longer answers", e...), false
		case d.folder != nil && d.folder.TooLong:
			return v.as(observe.BlockedByEnvironment, "the pipe folder's path is longer than a socket's may be: its daemon can't be reached", "start the daemon with a shorter CUDA_MPS_PIPE_DIRECTORY", e...), false
		case known && uid != c.f.UserID && c.f.UserID > 0 && d.process != nil && d.process.Mode.MultiUser:
		case known && uid != c.f.UserID && c.f.UserID != 0 || d.folder != nil && d.folder.Denied || d.list != nil && d.list.Kind == mps.Refused:
			who := "another user"
			if known {
				who = fmt.Sprintf("user %d", uid)
			}
			return v.as(observe.PermissionDenied, "an MPS daemon of "+who+" has "+d.where(), "ask as that user or as root; a server serves one user unless its daemon was started with -multiuser-server", e...), false
		case d.process != nil && d.list != nil && d.list.Kind == mps.NoDaemon:
			return v.as(observe.Unknown, "a control daemon runs and doesn't answer in "+d.where(), "look at its control.log; end it when its clients can be stopped, and start it anew", e...), false
		}
	}
	return v, true
}

func daemonText(d daemon) string {
	var parts []string
	if d.process != nil {
		parts = append(parts, "control daemon runs")
		if d.process.Mode.Static {
			parts = append(parts, "static partitioning (-S)")
		}
		if d.process.Mode.Protocol == 3 {
			parts = append(parts, "protocol 3")
		}
		if d.process.Mode.MultiUser {
			parts = append(parts, "multi-user")
		}
	}
	if d.folder != nil {
		parts = append(parts, "pid file "+string(d.folder.PIDState))
		if d.folder.Denied {
			parts = append(parts, "folder can't be entered")
		}
	}
	return strings.Join(parts, ", ")
}

// answering returns the daemons that answer and may serve this GPU, those first that the mechanism asked about would use.
func (c subject) answering(best func(daemon) bool) []daemon {
	list := slices.DeleteFunc(c.f.daemons(), func(d daemon) bool { return !d.answers() || !c.serves(d) })
	slices.SortStableFunc(list, func(a, b daemon) int {
		switch {
		case best(a) && !best(b):
			return -1
		case best(b) && !best(a):
			return 1
		}
		return 0
	})
	return list
}

// staleText says that pid files lie about without a daemon; empty where none does.
func (f *Facts) staleText() string {
	for _, d := range f.MPS.Folders {
		if strings.HasPrefix(string(d.PIDState), "stale_") || d.PIDState == mps.PIDMalformed {
			return fmt.Sprintf("; a stale pid file lies in %s (%s)", d.Path, strings.TrimPrefix(string(d.PIDState), "stale_"))
		}
	}
	return ""
}

func (c subject) mps() Verdict {
	v := Verdict{Floor: "compute capability 3.5; percentages and isolated address spaces from 7.0", Limitation: mpsShared}
	v, ok := c.mpsPlace(v, 35)
	if !ok {
		return v
	}
	if v, ok = c.blockedDaemon(v); !ok {
		return v
	}
	if c.f.MPS.Control == "" {
		return c.noControl(v)
	}
	v.Evidence = append(v.Evidence, c.mpsEvidence()...)
	if e, held := c.exclusive(); held && !c.mpsHolds() {
		return v.as(observe.Busy, "compute mode exclusive, and a process that isn't MPS's holds the GPU", "wait for it to end, then start the daemon", e)
	}
	if c.u.migEnabled() {
		v.Limitation += "; with MIG on, each MIG device gets a server of its own"
	}
	for _, d := range c.answering(func(d daemon) bool { return !d.static() }) {
		return c.mpsDaemon(v, d)
	}
	return v.as(observe.SupportedDeclared, fmt.Sprintf("control program %s is installed and no daemon answers%s", c.mpsVersion(), c.f.staleText()), "")
}

func (c subject) mpsVersion() string {
	if x, ok := c.f.MPS.Version.Get(); ok {
		return fmt.Sprint(x)
	}
	return "of unknown version"
}

// mpsDaemon judges classic MPS where a daemon answers.
func (c subject) mpsDaemon(v Verdict, d daemon) Verdict {
	v.Evidence = append(v.Evidence, said(d.where(), daemonText(d)))
	for _, a := range c.f.MPS.Answers {
		if d.folder == nil || a.Folder != d.folder.Path {
			continue
		}
		if strings.HasPrefix(a.Input, mps.ServerStatus.String()+" ") {
			v.Evidence = append(v.Evidence, said(mps.ServerStatus.String(), c.f.mask(a.Text)))
			if strings.Contains(strings.ToUpper(a.Text), "FAULT") {
				return v.as(observe.BlockedByDeviceState, "an MPS server is in state FAULT: new clients are refused until its clients have left", "end its clients, look at server.log; the server then starts anew")
			}
		}
		if a.Input == mps.DefaultPercentage.String() && a.Kind == mps.Answered {
			v.Evidence = append(v.Evidence, said(a.Input, a.Text))
		}
	}
	if d.static() {
		return v.as(observe.BlockedByMode, "the running daemon is in static mode (-S): percentages are ignored, and each client needs a partition",
			"use static partitions (CUDA_MPS_SM_PARTITION), or end the daemon and start it without -S")
	}
	clients := 0
	if n := c.u.nvml; n != nil {
		clients = len(n.Processes.MPS.Or(nil))
		v.Evidence = append(v.Evidence, valueEvidence(n.Processes.MPS, func(l []nvml.Process) string { return plural(len(l), "MPS client") }))
	}
	if clients == 0 {
		clients = c.listedClients(d)
	}
	if clients > 0 {
		return v.as(observe.SupportedProven, plural(clients, "client")+" on this GPU under the running daemon", "")
	}
	return v.as(observe.SupportedDeclared, "a daemon answers, no client on this GPU", "")
}

// listedClients counts the rows of `ps` for this GPU; a device is a prefix of its UUID.
func (c subject) listedClients(d daemon) int {
	n := 0
	for _, a := range c.f.MPS.Answers {
		if a.Input != mps.Processes.String() || d.folder == nil || a.Folder != d.folder.Path {
			continue
		}
		rows, _ := mps.ParseProcesses(a.Full())
		for _, r := range rows {
			if r.Device != "" && strings.HasPrefix(c.g.UUID, r.Device) {
				n++
			}
		}
	}
	return n
}

func (c subject) mpsStatic() Verdict {
	v := Verdict{Floor: "control program 13010 (CUDA 13.1) and compute capability 8.0",
		Limitation: "whole chunks of SMs, none lent while idle, no oversubscription; " + mpsShared}
	v, ok := c.mpsPlace(v, 80)
	if !ok {
		return v
	}
	if v, ok = c.blockedDaemon(v); !ok {
		return v
	}
	if c.f.MPS.Control == "" {
		return c.noControl(v)
	}
	v.Evidence = append(v.Evidence, c.mpsEvidence()...)
	have, known := c.f.MPS.Version.Get()
	switch {
	case !known:
		return v.as(observe.Unknown, "the control program doesn't tell its version", "see source mps_control in the report")
	case have < query.FloorMPSStaticControl:
		return v.as(observe.BlockedByRuntimeVersion, fmt.Sprintf("control program %d, %d is needed", have, query.FloorMPSStaticControl), c.f.upgrade("590"), c.lspartEvidence()...)
	}
	for _, d := range c.answering(func(d daemon) bool { return d.static() || d.protocol3() }) {
		v.Evidence = append(append(v.Evidence, said(d.where(), daemonText(d))), c.lspartEvidence()...)
		return c.staticDaemon(v, d)
	}
	return v.as(observe.SupportedDeclared, fmt.Sprintf("control program %d; no daemon answers, it would be started with -S%s", have, c.f.staleText()), "")
}

// staticDaemon judges static partitioning where a daemon answers.
func (c subject) staticDaemon(v Verdict, d daemon) Verdict {
	rows, listed := c.f.MPS.Partitions.Get()
	if d.protocol3() {
		return v.as(observe.SupportedDeclared, "the running daemon speaks protocol 3, which makes partitions by `sm-partition`", "")
	}
	if !listed {
		for _, a := range c.f.MPS.Answers {
			if a.Input == mps.PartitionList.String() && a.Kind == mps.UnknownCommand {
				return v.as(observe.BlockedByRuntimeVersion, "the running daemon doesn't know lspart: it is of an older driver than the control program", "end the daemon and start the installed one with -S")
			}
		}
	}
	if d.process == nil {
		if listed {
			return c.partitions(v, rows)
		}
		return v.as(observe.Unknown, "/proc doesn't show the daemon, so its mode can't be told", "ask with --mps-lspart, which makes the daemon initialise CUDA")
	}
	if !d.static() {
		return v.as(observe.BlockedByMode, "the running daemon was started without -S, and a running one can't be switched", "end the daemon when its clients can be stopped, and start it with -d -S")
	}
	if listed {
		return c.partitions(v, rows)
	}
	return v.as(observe.SupportedDeclared, "the running daemon was started with -S; its partitions were not asked for (--mps-lspart)", "")
}

// partitions judges what lspart listed for this GPU.
func (c subject) partitions(v Verdict, rows []mps.Partition) Verdict {
	n, free := 0, observe.None[int]("", 0, "")
	for _, r := range rows {
		if r.GPU == "" || !strings.HasPrefix(c.g.UUID, r.GPU) {
			continue
		}
		if r.ID != "" {
			n++
		} else {
			free = r.FreeChunks
		}
	}
	chunks := ""
	if x, ok := free.Get(); ok {
		chunks = fmt.Sprintf(", %d chunks free", x)
	}
	if n > 0 {
		return v.as(observe.SupportedProven, plural(n, "partition")+" on this GPU"+chunks, "")
	}
	return v.as(observe.SupportedDeclared, "the daemon lists partitions, none on this GPU"+chunks, "")
}

func (c subject) lspartEvidence() []Evidence {
	for _, a := range c.f.MPS.Answers {
		if a.Input == mps.PartitionList.String() {
			return []Evidence{returned("lspart", int32(a.ExitCode), string(a.Kind)+": "+a.Text)}
		}
	}
	return []Evidence{said("lspart", c.f.MPS.Partitions.Reason)}
}

func (c subject) mpsV3() Verdict {
	v := Verdict{Floor: "control program 13040 (CUDA 13.4), protocol 3", Limitation: "opt-in: a daemon speaks protocol 3 only where it was started so, and ids of partitions differ from protocol 2's; " + mpsShared}
	v, ok := c.mpsPlace(v, 35)
	if !ok {
		return v
	}
	if v, ok = c.blockedDaemon(v); !ok {
		return v
	}
	if c.f.MPS.Control == "" {
		return c.noControl(v)
	}
	v.Evidence = append(v.Evidence, c.mpsEvidence()...)
	have, known := c.f.MPS.Version.Get()
	for _, d := range c.answering(daemon.protocol3) {
		v.Evidence = append(v.Evidence, said(d.where(), daemonText(d)))
		if d.v3 != nil && d.v3.Kind == mps.Answered {
			return v.as(observe.SupportedProven, "the running daemon answers protocol 3", "", said(d.v3.Input, c.f.mask(d.v3.Text)))
		}
		if known && have >= FloorMPSv3 && !d.protocol3() {
			return v.as(observe.BlockedByMode, "the running daemon speaks protocol 2, and a running one can't be switched", "end the daemon when its clients can be stopped, and start it with --protocol 3")
		}
	}
	switch {
	case !known:
		return v.as(observe.Unknown, "the control program doesn't tell its version", "see source mps_control in the report")
	case have < FloorMPSv3:
		return v.as(observe.BlockedByRuntimeVersion, fmt.Sprintf("control program %d, %d is needed", have, FloorMPSv3), c.f.upgrade("615"))
	}
	return v.as(observe.SupportedDeclared, fmt.Sprintf("control program %d; no daemon answers, it would be started with --protocol 3", have), "")
}
