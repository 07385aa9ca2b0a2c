package inspect

import (
	"strconv"
	"strings"

	"cotenant/internal/observe"
)

// variables are the environment variables that a report keeps: those that decide what GPUs a process sees.
var variables = []string{"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
	"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_SM_PARTITION", "CUDA_MPS_PROTOCOL_VERSION", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
	"CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_MIG_CONFIG_DEVICES", "LD_PRELOAD"}

func environment(env []string) Environment {
	e := Environment{Variables: make(map[string]string)}
	for _, name := range variables {
		if v, ok := variable(env, name); ok {
			e.Variables[name] = observe.Clip(v)
		}
	}
	return e
}

// notLinux is what a source of Linux says elsewhere.
func notLinux(s *Source, os string) bool {
	if os == "linux" {
		return false
	}
	s.end(observe.BlockedByEnvironment, "exists on Linux only, this is "+os)
	return true
}

func kernel(t tree, os string) Kernel {
	k := Kernel{PIDNamespace: "unknown", MemTotal: observe.None[uint64]("/proc/meminfo", 0, "not read")}
	if notLinux(&k.Source, os) {
		return k
	}
	const release = "/proc/sys/kernel/osrelease"
	text, err := t.read(release)
	if err != nil {
		k.end(statusOf(err))
		k.add(said(release, k.Reason))
		return k
	}
	k.Release, k.Version = strings.TrimSpace(text), t.line("/proc/version")
	k.add(said(release, k.Release), said("/proc/version", k.Version))
	// Only gVisor's kernel has this file.
	if t.exists("/proc/sentry-meminfo") {
		k.GVisor = true
		k.add(said("/proc/sentry-meminfo", "exists"))
	}
	const ns = "/proc/self/ns/pid"
	if to := t.link(ns); to != "" {
		// The initial namespace has a fixed inode, PROC_PID_INIT_INO of Linux's proc_ns.h.
		k.PIDNamespace = "own"
		if to == "pid:[4026531836]" {
			k.PIDNamespace = "host"
		}
		k.add(said(ns, k.PIDNamespace))
	}
	k.MemTotal = memTotal(t)
	k.end(observe.SupportedProven, "")
	return k
}

// memTotal reads MemTotal of proc(5)'s meminfo, which is in KiB.
func memTotal(t tree) observe.Value[uint64] {
	const file = "/proc/meminfo"
	text, err := t.read(file)
	if err != nil {
		_, why := statusOf(err)
		return observe.None[uint64](file, 0, why)
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == "MemTotal:" {
			if kib, err := strconv.ParseUint(f[1], 10, 53); err == nil {
				return observe.Got(file, kib<<10)
			}
		}
	}
	return observe.None[uint64](file, 0, "no MemTotal line")
}

// containerMarks are what container runtimes leave behind, the surest first. A file counts by its presence.
var containerFiles = []struct{ file, kind string }{
	{"/run/.containerenv", "podman"},
	{"/.dockerenv", "docker"},
	{"/.singularity.d", "apptainer"},
}

// controlGroups are words of a control group's path, with version 1 or without a namespace of its own.
var controlGroups = []struct{ word, kind string }{
	{"kubepods", "kubernetes"}, {"libpod", "podman"}, {"docker", "docker"}, {"cri-containerd", "containerd"}, {"containerd", "containerd"}, {"lxc", "lxc"},
	{"machine.slice/systemd-nspawn", "systemd-nspawn"},
}

func container(t tree, os string, env []string) Container {
	c := Container{Kind: "unknown", UserNamespace: observe.None[bool]("/proc/self/uid_map", 0, "not read")}
	if notLinux(&c.Source, os) {
		return c
	}
	c.UserNamespace = userNamespace(t)
	found := ""
	note := func(kind, call, text string) {
		c.add(said(call, text))
		// Kubernetes says more than the runtime below it.
		if found == "" || kind == "kubernetes" {
			found = kind
		}
	}
	for _, m := range containerFiles {
		if t.exists(m.file) {
			note(m.kind, m.file, "exists")
		}
	}
	if v, ok := variable(env, "KUBERNETES_SERVICE_HOST"); ok && v != "" {
		note("kubernetes", "environment KUBERNETES_SERVICE_HOST", "set")
	}
	if kind := t.line("/run/systemd/container"); kind != "" {
		note(kind, "/run/systemd/container", kind)
	}
	const groups = "/proc/self/cgroup"
	text, err := t.read(groups)
	if err == nil {
		if word, kind := controlGroup(text); kind != "" {
			note(kind, groups, "holds "+word)
		}
	}
	switch {
	case found != "":
		c.Kind = found
	case err != nil:
		status, reason := statusOf(err)
		c.add(said(groups, reason))
		c.end(status, groups+": "+reason)
		return c
	case overlayRoot(t):
		c.Kind = "other"
		c.add(said("/proc/self/mountinfo", "the root is an overlay"))
	default:
		c.Kind = "none"
		c.add(said(groups, "names no container runtime"))
	}
	c.end(observe.SupportedProven, "")
	return c
}

func controlGroup(text string) (word, kind string) {
	for _, g := range controlGroups {
		for line := range strings.Lines(text) {
			if strings.Contains(line, g.word) {
				// dockerd's own group on a host is /system.slice/docker.service.
				if strings.Contains(line, ".service") && !strings.Contains(line, "kubepods") {
					continue
				}
				return g.word, g.kind
			}
		}
	}
	return "", ""
}

// overlayRoot reports whether / is an overlay, as a container's is that left no other mark.
func overlayRoot(t tree) bool {
	text, err := t.read("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	for line := range strings.Lines(text) {
		// proc(5): the fifth field is the mount point, the file system's type follows " - ".
		f := strings.Fields(line)
		_, after, ok := strings.Cut(line, " - ")
		if len(f) > 4 && f[4] == "/" && ok && strings.HasPrefix(after, "overlay ") {
			return true
		}
	}
	return false
}

// userNamespace reports whether user ids are mapped: the initial namespace maps all of them to themselves.
func userNamespace(t tree) observe.Value[bool] {
	const file = "/proc/self/uid_map"
	text, err := t.read(file)
	if err != nil {
		_, why := statusOf(err)
		return observe.None[bool](file, 0, why)
	}
	f := strings.Fields(text)
	return observe.Got(file, !(len(f) == 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295"))
}

func wsl(t tree, os, release string) WSL {
	w := WSL{Files: []string{}}
	if notLinux(&w.Source, os) {
		return w
	}
	w.DXG = t.exists("/dev/dxg")
	low := strings.ToLower(release)
	w.Present = w.DXG || strings.Contains(low, "microsoft") || strings.Contains(low, "wsl")
	if !w.Present {
		w.add(said("/dev/dxg", "not there"))
		w.end(observe.Unavailable, "this is not WSL2")
		return w
	}
	const dir = "/usr/lib/wsl/lib"
	names, err := t.names(dir)
	w.Files = names
	w.add(said("/dev/dxg", presence(w.DXG)), said("/proc/sys/kernel/osrelease", release))
	if err != nil {
		status, reason := statusOf(err)
		w.add(said(dir, reason))
		w.end(status, dir+": "+reason)
		return w
	}
	w.add(said(dir, strings.Join(names, " ")))
	w.end(observe.SupportedProven, "")
	return w
}

func presence(ok bool) string {
	if ok {
		return "exists"
	}
	return "not there"
}

func tegra(t tree, os string) Tegra {
	var g Tegra
	if notLinux(&g.Source, os) {
		return g
	}
	const release, compatible, model = "/etc/nv_tegra_release", "/proc/device-tree/compatible", "/proc/device-tree/model"
	g.Release, g.Model = t.line(release), t.line(model)
	text, _ := t.read(compatible)
	g.Present = g.Release != "" || strings.Contains(text, "nvidia,tegra")
	if !g.Present {
		g.Model = ""
		g.add(said(release, "not there"), said(compatible, "names no Tegra"))
		g.end(observe.Unavailable, "this is no Tegra board")
		return g
	}
	g.add(said(release, g.Release), said(model, g.Model), said(compatible, strings.ReplaceAll(strings.Trim(text, "\x00"), "\x00", " ")))
	g.end(observe.SupportedProven, "")
	return g
}
