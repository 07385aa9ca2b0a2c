package soak

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/ledger"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
	"cotenant/internal/scrape"
)

// Values of GPUOptions.From beside a UUID and a URL.
const (
	GPUAuto = "auto" // all GPUs of this machine, where the endpoint is on it
	GPUNone = "none"
)

// GPUOptions say whose GPUs samples show.
type GPUOptions struct {
	From string   // GPUAuto (also if empty), GPUNone, a GPU's UUID on this machine, or the URL of a dcgm-exporter
	Root string   // put before paths where the driver is looked for; empty but in tests
	Env  []string // of the programs that are asked; nil: this process's
}

func (o *GPUOptions) check() error {
	switch {
	case o.From == "":
		o.From = GPUAuto
	case o.From == GPUAuto, o.From == GPUNone, strings.HasPrefix(o.From, "GPU-"):
	default:
		if u, err := url.Parse(o.From); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return usage("gpu %q: want %s, %s, a UUID that begins with GPU-, or the URL of a dcgm-exporter", o.From, GPUAuto, GPUNone)
		}
	}
	return nil
}

// gpus reads GPUs for samples. One goroutine uses it. A driver that hangs costs one sample's wait and is not asked again.
type gpus struct {
	opts   GPUOptions
	commit *ledger.Committer
	http   *scrape.Client // for a dcgm-exporter
	limit  time.Duration  // of one reading

	source  string
	uuids   []string // of NVML
	session *nvml.Session
	reason  string // why there is nothing to ask
}

// newGPUs finds out whom to ask. here says whether the endpoint is on this machine.
func newGPUs(ctx context.Context, o GPUOptions, here bool, client *scrape.Client, limit time.Duration) *gpus {
	g := &gpus{opts: o, http: client, limit: limit}
	switch {
	case o.From == GPUNone:
		g.reason = "no GPU was asked for"
	case strings.Contains(o.From, "://"):
		g.source = ledger.GPUByDCGM
	case o.From == GPUAuto && !here:
		g.reason = "the endpoint isn't on this machine, and no dcgm-exporter was named"
	case !hasDriver(o.Root):
		g.reason = "this machine has no NVIDIA driver"
	default:
		g.openNVML(ctx)
	}
	return g
}

// hasDriver looks for the kernel module, or WSL's device, before anything is loaded or started: most machines have neither.
func hasDriver(root string) bool {
	for _, path := range []string{"/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg"} {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			return true
		}
	}
	return false
}

// openNVML lets a child try NVML first: a library that crashes or hangs at its initialisation does so there. Where it doesn't work,
// nvidia-smi is asked.
func (g *gpus) openNVML(ctx context.Context) {
	report := nvml.Inspect(ctx, nvml.Options{Root: g.opts.Root, Env: g.opts.Env})
	why := report.Reason
	if report.Status == observe.SupportedProven && report.Library != nil {
		for _, d := range report.Devices {
			if uuid, ok := d.UUID.Get(); ok && g.wanted(uuid) {
				g.uuids = append(g.uuids, uuid)
			}
		}
		if len(g.uuids) == 0 {
			g.reason = "NVML knows no such GPU"
			return
		}
		name := report.Library.Path
		if name == "" {
			name = report.Library.Name
		}
		session, err := nvml.Open(name)
		if err == nil {
			g.session, g.source = session, ledger.GPUByNVML
			return
		}
		why = err.Error()
	}
	g.source = ledger.GPUBySMI
	if _, err := g.smi(ctx); err != nil {
		g.source, g.reason = "", fmt.Sprintf("NVML: %s; nvidia-smi: %v", why, err)
	}
}

func (g *gpus) wanted(uuid string) bool { return g.opts.From == GPUAuto || g.opts.From == uuid }

// sample reads the GPUs. The reason says why there are none, or why some are missing. A nil g has none.
func (g *gpus) sample(ctx context.Context) ([]ledger.GPUUsage, string) {
	if g == nil {
		return []ledger.GPUUsage{}, "no GPU was asked for"
	}
	if g.source == "" {
		return []ledger.GPUUsage{}, g.reason
	}
	var list []scrape.GPU
	var err error
	switch g.source {
	case ledger.GPUByNVML:
		list, err = g.nvml()
	case ledger.GPUBySMI:
		list, err = g.smi(ctx)
	default:
		list, err = g.http.DCGM(ctx, g.opts.From)
	}
	out, reason := []ledger.GPUUsage{}, ""
	for _, x := range list[:min(len(list), ledger.MaxGPUs)] {
		out = append(out, ledger.GPUUsage{GPU: g.commit.Commit(ledger.LabelGPU, []byte(x.UUID)), Source: g.source, MemoryUsedBytes: ledger.Opt(x.MemoryUsedBytes),
			MemoryTotalBytes: ledger.Opt(x.MemoryTotalBytes), PowerMW: ledger.Opt(x.PowerMW), EnergyMJ: ledger.Opt(x.EnergyMJ), BusyPPM: ledger.Opt(x.BusyPPM),
			SMMHz: ledger.Opt(x.SMMHz), Xid: ledger.Opt(x.Xid)})
	}
	if err != nil {
		reason = describe(err)
	} else if len(list) > ledger.MaxGPUs {
		reason = fmt.Sprintf("%d of %d GPUs are shown", ledger.MaxGPUs, len(list))
	}
	return out, reason
}

var errHung = errors.New("NVML gave no answer in time; it is not asked again")

// nvml asks in this process, from another goroutine: a call that hangs is left behind with it.
func (g *gpus) nvml() ([]scrape.GPU, error) {
	type answer struct {
		list []scrape.GPU
		err  error
	}
	done := make(chan answer, 1)
	session, uuids := g.session, g.uuids
	go func() {
		var a answer
		for _, uuid := range uuids {
			s, err := session.Sample(uuid)
			if err != nil {
				a.err = errors.Join(a.err, fmt.Errorf("a GPU doesn't answer: %w", err))
				continue
			}
			a.list = append(a.list, fromNVML(s))
		}
		done <- a
	}()
	select {
	case a := <-done:
		return a.list, a.err
	case <-time.After(g.limit):
		g.source, g.reason = "", errHung.Error()
		return nil, errHung
	}
}

func fromNVML(s nvml.Sample) scrape.GPU {
	g := scrape.GPU{UUID: s.UUID}
	if m, ok := s.Memory.Get(); ok {
		g.MemoryUsedBytes, g.MemoryTotalBytes = number(m.UsedBytes, 1), number(m.TotalBytes, 1)
	}
	if v, ok := s.PowerMW.Get(); ok {
		g.PowerMW = number(uint64(v), 1)
	}
	if v, ok := s.EnergyMJ.Get(); ok {
		g.EnergyMJ = number(v, 1)
	}
	if v, ok := s.GPUPercent.Get(); ok && v <= 100 {
		g.BusyPPM = number(uint64(v), 10_000)
	}
	if v, ok := s.SMMHz.Get(); ok {
		g.SMMHz = number(uint64(v), 1)
	}
	return g
}

// number drops what no document can hold.
func number(v, scale uint64) scrape.Opt {
	if v > ledger.MaxInt/scale {
		return scrape.Opt{}
	}
	return scrape.Some(int64(v * scale))
}

// smi runs nvidia-smi once. It takes the driver some 10 to 500 ms, which is in the host's CPU time.
func (g *gpus) smi(ctx context.Context) ([]scrape.GPU, error) {
	r := bounded.Run(ctx, bounded.Command{Path: g.smiPath(), Args: scrape.SMIArgs(), Env: g.opts.Env, Timeout: max(g.limit, time.Second)})
	if r.Outcome != bounded.Exited || r.ExitCode != 0 {
		why := string(r.Outcome)
		if r.Err != nil {
			why = r.Err.Error()
		} else if r.Outcome == bounded.Exited {
			why = fmt.Sprintf("exit code %d: %s", r.ExitCode, observe.Clip(strings.TrimSpace(r.Text())))
		}
		return nil, fmt.Errorf("running nvidia-smi: %s", why)
	}
	all, err := scrape.ParseSMI(r.Stdout)
	if err != nil {
		return nil, err
	}
	var list []scrape.GPU
	for _, x := range all {
		if g.wanted(x.UUID) {
			list = append(list, x)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("nvidia-smi: %w", scrape.ErrNoGPU)
	}
	return list, nil
}

// smiPath finds nvidia-smi on the PATH of the options' environment.
func (g *gpus) smiPath() string {
	for _, v := range g.opts.Env {
		if dirs, ok := strings.CutPrefix(v, "PATH="); ok {
			for _, dir := range filepath.SplitList(dirs) {
				if path := filepath.Join(dir, "nvidia-smi"); isFile(path) {
					return path
				}
			}
		}
	}
	return "nvidia-smi"
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
