//go:build linux

package probe

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"cotenant/internal/gputest"
	"cotenant/internal/observe"
	"cotenant/internal/probe/evidence"
)

func withMPS(version int) func(*gputest.Host) {
	return func(h *gputest.Host) { h.MPS = &gputest.MPS{Version: version} }
}

func mpsOptions(t *testing.T, m *gputest.Machine) MPSOptions {
	return MPSOptions{Common: Common{GPUUUID: testUUID, Confirm: true, Out: filepath.Join(t.TempDir(), "run"), Root: m.Root, Env: m.Env}}
}

func runMPS(t *testing.T, o MPSOptions) (Outcome, *evidence.MPSResult) {
	t.Helper()
	out, err := MPS(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := out.Result.(*evidence.MPSResult)
	return out, r
}

func TestMPSClassic(t *testing.T) {
	m := gputest.Start(t, testHost(withMPS(13000)))
	out, r := runMPS(t, mpsOptions(t, m))
	if out.Exit != ExitDone || r == nil {
		t.Fatalf("exit %d, %s\n%s", out.Exit, out.Why, dump(r))
	}
	whole, share := r.Classic.Client("whole"), r.Classic.Client("share")
	if whole.SMs != 132 || len(whole.SMIDs) != 132 || !whole.MPS.Or(false) || whole.Green == nil || whole.Green.Partitions[0].Granted != 8 {
		t.Errorf("whole %s", dump(whole))
	}
	// As measured on an H200: 32 SMs, no split with coscheduling, splits without it, which divide nothing.
	if share.SMs != 32 || share.ResourceSMs != 32 || share.Splits[1].Code != 915 || share.Splits[4].Code != 0 || share.Green == nil {
		t.Errorf("share %s", dump(share))
	}
	if share.GreenApart() || len(share.GreenOverlap.SMIDs) != 6 || !strings.Contains(strings.Join(r.Warnings, " "), "8 SMs granted, 6 seen; 8 SMs granted, 6 seen, 6 in common") {
		t.Errorf("share %s\n%s", dump(share.GreenOverlap), r.Warnings)
	}
	// The context's own memory counts: 513 MiB of the limit.
	if c := r.Classic.Client("limited"); c.FreeBytes > limitedMemory-513<<20 || c.FreeBytes < fitsLimit {
		t.Errorf("limited %s", dump(c))
	}
	if r.Static.Started || r.Static.Status != observe.BlockedByRuntimeVersion || !r.Classic.QuitClean || !r.Classic.ServersOurs || r.Classic.Servers != 1 {
		t.Errorf("%s", dump(r))
	}
	leftNothing(t, out)
}

func TestMPSStatic(t *testing.T) {
	m := gputest.Start(t, testHost(withMPS(13010), withVersion(13010)))
	out, r := runMPS(t, mpsOptions(t, m))
	if out.Exit != ExitDone || r == nil {
		t.Fatalf("exit %d, %s\n%s", out.Exit, out.Why, dump(r))
	}
	p := r.Static.Partitions
	if len(p) != 2 || p[0].SMs != 8 || p[1].SMs != 16 || !p[0].Gone || r.Static.Client("unbound").Code != 915 || r.Static.Client("partition 1").SMs != 16 {
		t.Errorf("%s", dump(r.Static))
	}
	leftNothing(t, out)
}

// A preview starts nothing, and gates refuse: no program, another's daemon.
func TestMPSGates(t *testing.T) {
	m := gputest.Start(t, testHost(withMPS(13000)))
	o := mpsOptions(t, m)
	o.Confirm = false
	if out, r := runMPS(t, o); out.Exit != ExitDone || r != nil || !out.Plan.Go || len(m.Mutations()) > 0 {
		t.Errorf("preview: exit %d, %q", out.Exit, m.Mutations())
	}
	for gate, change := range map[string]func(*gputest.Host){
		"mps_control": func(*gputest.Host) {},
		"no_mps": func(h *gputest.Host) {
			h.MPS = &gputest.MPS{Version: 13000, Daemons: []gputest.MPSDaemon{{PID: 4711, Servers: []int{4712}}}}
		},
	} {
		m := gputest.Start(t, testHost(change))
		out, r := runMPS(t, mpsOptions(t, m))
		if out.Exit != ExitNo || r != nil || !strings.Contains(out.Why, gate) || len(m.Mutations()) > 0 {
			t.Errorf("%s: exit %d, %s, %q", gate, out.Exit, out.Why, m.Mutations())
		}
	}
}

// Another's daemon, where a flag lets the probe go on, is what it was.
func TestMPSBesideAnother(t *testing.T) {
	m := gputest.Start(t, testHost(func(h *gputest.Host) {
		h.MPS = &gputest.MPS{Version: 13000, Daemons: []gputest.MPSDaemon{{PID: 4711, Servers: []int{4712}}}}
	}))
	o := mpsOptions(t, m)
	o.AllowMPS = true
	out, r := runMPS(t, o)
	if out.Exit != ExitDone || !r.Others.Untouched || len(r.Others.Before) != 2 {
		t.Errorf("exit %d, %s, others %+v", out.Exit, out.Why, r.Others)
	}
	for _, line := range m.Mutations() {
		if strings.Contains(line, "/tmp/nvidia-mps:") {
			t.Errorf("another's daemon was told something: %s", line)
		}
	}
}
