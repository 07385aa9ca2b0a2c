package probe

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"cotenant/internal/nvml"
	"cotenant/internal/observe"
	"cotenant/internal/probe/evidence"
)

const (
	healthPeriod = 100 * time.Millisecond
	// A call into NVML that takes longer counts as a loss: the driver hangs.
	healthHang = 3 * time.Second
	// settleTime is how long device memory may take to come back after a process's end.
	settleTime = 5 * time.Second
	// memoryTolerance is the driver's page: less than what one Green Context keeps.
	memoryTolerance = 2 << 20
)

// watch looks at a GPU from outside, by NVML in this process and by the kernel's log, ten times a second.
type watch struct {
	uuid    string
	session *nvml.Session
	log     *kernelLog

	// Before is the GPU before anything was made.
	Before nvml.Pulse
	health evidence.Health
	most   observe.Value[uint64]
	hung   bool
}

// newWatch opens NVML and the kernel's log, and takes the first look.
func newWatch(c Common) *watch {
	w := &watch{uuid: c.GPUUUID, health: evidence.Health{PeriodMS: healthPeriod.Milliseconds(), Xids: []string{}}}
	none := func(why string) evidence.Feature {
		return evidence.Feature{Status: observe.Unavailable, Reason: observe.Clip(why)}
	}
	w.health.Display, w.health.GPU = none("NVML isn't there"), none("NVML isn't there")
	session, err := nvml.Open(nvml.Candidates(c.Root, c.Env)...)
	if err != nil {
		w.health.GPU, w.health.Display = none(err.Error()), none(err.Error())
	} else {
		w.session = session
	}
	var p nvml.Pulse
	p, w.hung = w.look()
	w.Before = p
	if w.session != nil && p.Handle.OK() {
		w.health.GPU = evidence.Feature{Status: observe.SupportedProven, Reason: "nvmlDeviceGetHandleByUUID"}
		w.health.Display = none("NVML doesn't tell: " + cmp.Or(p.DisplayActive.Reason, "no reason"))
		if p.DisplayActive.OK() {
			w.health.Display = evidence.Feature{Status: observe.SupportedProven, Reason: fmt.Sprintf("active before: %v", *p.DisplayActive.Value)}
		}
	} else if w.session != nil {
		w.health.GPU = none(p.Handle.Reason)
	}
	w.log, err = openKernelLog(c.Root)
	if err != nil {
		w.health.Xid = none(err.Error())
	} else {
		w.health.Xid = evidence.Feature{Status: observe.SupportedProven, Reason: "/dev/kmsg"}
	}
	return w
}

// look asks NVML, but not for longer than healthHang: a call that hangs is left behind.
func (w *watch) look() (p nvml.Pulse, hung bool) {
	if w.session == nil || w.hung {
		why := "NVML isn't there"
		p.Handle, p.Memory = observe.None[bool]("", 0, why), observe.None[nvml.Memory]("", 0, why)
		p.DisplayActive, p.DisplayAttached = observe.None[bool]("", 0, why), observe.None[bool]("", 0, why)
		p.Processes = observe.None[[]uint32]("", 0, why)
		return p, false
	}
	answer := make(chan nvml.Pulse, 1)
	go func() { answer <- w.session.Pulse(w.uuid) }()
	select {
	case p = <-answer:
		return p, false
	case <-time.After(healthHang):
		return nvml.Pulse{Handle: observe.None[bool]("nvmlDeviceGetHandleByUUID", 0, "no answer within "+healthHang.String())}, true
	}
}

func used(p nvml.Pulse) observe.Value[uint64] {
	m, ok := p.Memory.Get()
	if !ok {
		return observe.None[uint64](p.Memory.Call, p.Memory.Code, cmp.Or(p.Memory.Reason, "not asked"))
	}
	return observe.Got(p.Memory.Call, m.UsedBytes)
}

// during watches until ctx ends and calls lost once where the GPU or its display is gone or the kernel reports an Xid.
func (w *watch) during(ctx context.Context, lost func(why string)) {
	tick := time.NewTicker(healthPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p, hung := w.look()
		w.health.Samples++
		if u, ok := used(p).Get(); ok && u > w.most.Or(0) {
			w.most = used(p)
		}
		if why := w.judge(p, hung); why != "" {
			w.hung = w.hung || hung
			w.health.Lost = why
			lost(why)
			return
		}
	}
}

// judge returns what was lost; empty for nothing.
func (w *watch) judge(p nvml.Pulse, hung bool) string {
	if w.log != nil {
		w.health.Xids = append(w.health.Xids, w.log.xids()...)
		if n := len(w.health.Xids); n > 0 {
			return "the kernel reports " + w.health.Xids[n-1]
		}
	}
	switch {
	case hung:
		return "NVML hangs"
	case w.Before.Handle.OK() && !p.Handle.OK():
		return "the GPU is gone: " + p.Handle.Reason
	case w.Before.DisplayActive.Or(false) && !p.DisplayActive.Or(false):
		return "the display isn't active any more"
	}
	return ""
}

// settle waits until the GPU's memory is what it was before, within the tolerance, and says what it saw.
func (w *watch) settle(attributed bool) (m evidence.Outside, g evidence.Gone) {
	m = evidence.Outside{Verdict: evidence.Unknown, Before: used(w.Before), Most: w.most, Tolerance: memoryTolerance, Attributed: attributed}
	if !w.most.OK() {
		m.Most = observe.None[uint64]("nvmlDeviceGetMemoryInfo", 0, "no sample while the worker ran")
	}
	start := time.Now()
	for {
		p, hung := w.look()
		w.hung = w.hung || hung
		m.After, m.WaitedMS = used(p), time.Since(start).Milliseconds()
		g.Listed = listed(w.Before, p)
		before, ok1 := m.Before.Get()
		after, ok2 := m.After.Get()
		switch {
		case !ok1 || !ok2:
			return m, g
		case after <= before+m.Tolerance && !g.Listed.Or(false):
			m.Verdict = evidence.Returned
			return m, g
		case time.Since(start) > settleTime:
			m.Verdict = evidence.NotReturned
			if !attributed {
				m.Verdict = evidence.Unknown // others allocate meanwhile
			}
			return m, g
		}
		time.Sleep(healthPeriod)
	}
}

// listed says whether NVML lists more processes than before. Pids are the host's and ours may be a container's, so they are counted.
func listed(before, after nvml.Pulse) observe.Value[bool] {
	b, ok1 := before.Processes.Get()
	a, ok2 := after.Processes.Get()
	if !ok1 || !ok2 {
		return observe.None[bool](after.Processes.Call, after.Processes.Code, cmp.Or(after.Processes.Reason, before.Processes.Reason, "not asked"))
	}
	return observe.Got(after.Processes.Call, len(a) > len(b))
}

func (w *watch) close() {
	if w.log != nil {
		w.log.f.Close()
	}
	if w.session != nil && !w.hung {
		_ = w.session.Close()
	}
}

// kernelLog reads what the kernel logs from the moment it is opened.
type kernelLog struct {
	mu    sync.Mutex
	f     *os.File
	lines []string
}

// An Xid is how NVIDIA's kernel module reports a fault: "NVRM: Xid (PCI:0000:06:00): 79, …".
var xidLine = regexp.MustCompile(`NVRM: Xid \([^)]*\): \d+`)

func openKernelLog(root string) (*kernelLog, error) {
	f, err := os.OpenFile(filepath.Join(root, "/dev/kmsg"), os.O_RDONLY|nonBlocking, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, 2); err != nil {
		f.Close()
		return nil, err
	}
	k := &kernelLog{f: f}
	go k.read()
	return k, nil
}

// read goes on until the file is closed. The device gives one record a read and blocks at its end; a file, in tests, ends.
func (k *kernelLog) read() {
	r := bufio.NewReaderSize(k.f, 16<<10)
	for {
		line, err := r.ReadString('\n')
		if m := xidLine.FindString(line); m != "" {
			k.mu.Lock()
			k.lines = append(k.lines, strings.TrimSpace(observe.Clip(line[strings.Index(line, m):])))
			k.mu.Unlock()
		}
		if err != nil {
			if _, serr := k.f.Seek(0, 1); serr != nil {
				return // closed
			}
			time.Sleep(healthPeriod / 2)
		}
	}
}

// xids returns the lines since the last call.
func (k *kernelLog) xids() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	lines := k.lines
	k.lines = nil
	return lines
}
