package inspect

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"cotenant/internal/cuda/query"
	"cotenant/internal/observe"
)

// titles are the mechanisms' names for people.
var titles = map[string]string{
	GreenContexts: "green contexts", Workqueues: "workqueue resources", Heterogeneous: "heterogeneous split", MPSClassic: "MPS",
	MPSStatic: "MPS static partitions", MPSv3: "MPS v3", MIG: "MIG", TimeSlicing: "time-slicing",
}

// WriteTable prints the report for people: a line a GPU and mechanism with the verdict and why, and what to do next where it
// isn't supported.
func (r *Report) WriteTable(w io.Writer) error {
	p := &printer{w: w}
	p.host(r)
	for i := range r.GPUs {
		p.gpu(&r.GPUs[i])
	}
	p.topology(r)
	p.findings(r)
	p.sources(r)
	return p.err
}

type printer struct {
	w   io.Writer
	err error
}

func (p *printer) f(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) host(r *Report) {
	h := r.Host
	parts := []string{h.Platform}
	if h.Platform == "native" {
		parts[0] = h.OS
	}
	if h.KernelRelease != "" {
		parts = append(parts, "kernel "+h.KernelRelease)
	}
	if h.Container != "none" && h.Container != "unknown" {
		parts = append(parts, "in a container ("+h.Container+")")
	}
	if h.Sandbox != "none" {
		parts = append(parts, "in sandbox "+h.Sandbox)
	}
	p.f("Host    %s\n", strings.Join(parts, ", "))
	driver := first(h.Driver.NVML, h.Driver.SMI).Or(h.Driver.KernelModule)
	if driver == "" {
		driver = "none seen"
	} else if h.Driver.Open {
		driver += " (open kernel module)"
	}
	if v, ok := first(h.CUDA.Driver, h.CUDA.NVML).Get(); ok && v > 0 {
		driver += ", CUDA " + query.FormatVersion(v)
	}
	p.f("Driver  %s\n", driver)
	if h.MPS.Control != "" {
		text := h.MPS.Control
		if v, ok := h.MPS.Version.Get(); ok {
			text = fmt.Sprintf("control program %d", v)
		}
		p.f("MPS     %s, %s, %s\n", text, plural(len(h.MPS.Daemons), "daemon"), plural(h.MPS.Servers, "server"))
	}
	if also := alsoText(h); also != "" {
		p.f("Also    %s\n", also)
	}
	if r.ObservedRoot != "" {
		p.f("NOTE    files were read under another root: this is a test's host, not this machine\n")
	}
	if len(r.GPUs) == 0 {
		p.f("\nNo NVIDIA GPU was found.\n")
	}
}

// alsoText names what may share or use the GPUs: engines, specifications, toolkits, packages.
func alsoText(h Host) string {
	var parts []string
	if h.Docker != nil {
		parts = append(parts, "Docker "+h.Docker.Version+" (runtimes "+strings.Join(h.Docker.Runtimes, ", ")+")")
	}
	if n := len(h.CDI); n > 0 {
		parts = append(parts, plural(n, "CDI specification"))
	}
	if h.Toolkit != nil {
		parts = append(parts, strings.TrimSpace("NVIDIA container toolkit "+h.Toolkit.Version))
	}
	if v, ok := h.CUDA.Runtime.Get(); ok {
		parts = append(parts, "libcudart "+query.FormatVersion(v))
	}
	if h.NVCC != "" {
		parts = append(parts, "CUDA toolkit "+h.NVCC)
	}
	for _, k := range h.Packages {
		parts = append(parts, k.Name+" "+k.Version)
	}
	return strings.Join(parts, ", ")
}

func (p *printer) gpu(g *GPU) {
	head := []string{g.Name.Or("unnamed GPU")}
	for _, x := range []string{g.UUID, g.PCI.Or("")} {
		if x != "" {
			head = append(head, x)
		}
	}
	if cc, ok := g.ComputeCapability.Get(); ok {
		head = append(head, "compute capability "+cc)
	}
	if n, ok := g.SMCount.Get(); ok {
		head = append(head, fmt.Sprintf("%d SMs", n))
	}
	if b, ok := g.MemoryBytes.Get(); ok {
		text := fmt.Sprintf("%.1f GiB", float64(b)/(1<<30))
		if g.MemoryUnified.Or(false) {
			text += " shared with the host"
		}
		head = append(head, text)
	}
	if g.State != stateOK {
		head = append(head, strings.ToUpper(g.State))
	}
	p.f("\nGPU  %s\n", strings.Join(head, "  "))
	if len(g.Roles) > 0 {
		p.f("     role %s\n", strings.Join(g.Roles, ", "))
	}
	if held := g.Processes.Or(nil); len(held) > 0 {
		p.f("     held by %s\n", heldText(held))
	}
	tw := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
	for _, m := range Mechanisms() {
		v := g.Mechanisms[m]
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", titles[m], v.Status, v.Reason)
		if v.Next != "" {
			fmt.Fprintf(tw, "  \t\t→ %s\n", v.Next)
		}
	}
	if err := tw.Flush(); p.err == nil {
		p.err = err
	}
}

func heldText(held []HeldBy) string {
	var parts []string
	for _, h := range held {
		name := h.Executable.Or("a process that can't be read")
		if h.Deleted {
			name += " (file deleted)"
		}
		text := fmt.Sprintf("%s × %d (%s)", name, h.Count, strings.Join(h.Kinds, ", "))
		if len(h.PIDs) > 0 {
			text += " pid " + strings.Trim(fmt.Sprint(h.PIDs), "[]")
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func (p *printer) topology(r *Report) {
	if r.Topology == nil {
		return
	}
	b := r.Topology
	host := b.Host
	if host == "" {
		host = "none of the declared hosts: " + b.Reason
	}
	p.f("\nTopology  this is %s\n", host)
	for _, role := range b.Roles {
		p.f("  %s/%s  %s", role.Host, role.Role, role.State)
		if role.Reason != "" {
			p.f(": %s", role.Reason)
		}
		p.f("\n")
	}
	for _, role := range b.Foreign {
		p.f("  %s/%s  is declared on another host and was observed here\n", role.Host, role.Role)
	}
}

func (p *printer) findings(r *Report) {
	if len(r.Findings)+len(r.Disagreements) > 0 {
		p.f("\nFindings\n")
	}
	for _, x := range r.Findings {
		text := x.Text
		if x.GPU != "" {
			text = x.GPU + ": " + text
		}
		p.f("  %s: %s\n", x.ID, text)
		if x.Next != "" {
			p.f("      → %s\n", x.Next)
		}
	}
	for _, d := range r.Disagreements {
		var said []string
		for _, s := range sortedKeys(d.Said) {
			said = append(said, s+" says "+d.Said[s])
		}
		text := d.Field
		if d.GPU != "" {
			text = d.GPU + ": " + text
		}
		p.f("  sources disagree on %s: %s\n", text, strings.Join(said, ", "))
	}
}

// sources lists those that didn't answer, save where the place they look at just isn't there.
func (p *printer) sources(r *Report) {
	quiet := []string{"wsl", "tegra", "gvisor", "cdi", "docker", "container_toolkit", "nvcc", "frameworks", "libcudart"}
	var lines []string
	for _, name := range sortedKeys(r.Sources) {
		s := r.Sources[name]
		if s.Status == observe.SupportedProven || slices.Contains(quiet, name) && (s.Status == observe.Unavailable || s.Status == observe.BlockedByEnvironment) {
			continue
		}
		lines = append(lines, fmt.Sprintf("  %s\t%s\t%s\n", name, s.Status, s.Reason))
	}
	if len(lines) == 0 {
		return
	}
	p.f("\nSources that did not answer\n")
	tw := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
	for _, l := range lines {
		fmt.Fprint(tw, l)
	}
	if err := tw.Flush(); p.err == nil {
		p.err = err
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
