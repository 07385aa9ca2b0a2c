//go:build linux

package probe

import (
	"path/filepath"
	"testing"

	"cotenant/internal/gputest"
	"cotenant/internal/partition"
)

const migUUID = "MIG-377e0049-554c-540b-93c6-d0976f8426cb"

// Where MIG mode is on already, a MIG device is named and split; the GPU as a whole is refused. Nothing changes the mode.
func TestCreateUnderMIG(t *testing.T) {
	host := testHost(func(h *gputest.Host) {
		h.GPUs[0].MIG = &gputest.MIG{Current: true, Pending: true, Max: 7, Devices: []gputest.MIGDevice{{Slot: 2, GI: 1, SMs: 60, Slices: 3, ComputeSlices: 3,
			UUID: migUUID, Name: "NVIDIA H200 MIG 3g.71gb", MemoryMiB: 70 << 10}}}
	})
	m := gputest.Start(t, host)
	o := options(t, m)
	out, r := create(t, o)
	if out.Exit != ExitNo || r != nil {
		t.Errorf("the whole GPU: exit %d, %s", out.Exit, out.Why)
	}
	o.GPUUUID, o.Out = migUUID, filepath.Join(t.TempDir(), "mig")
	o.Plan = partition.Plan{SMs: []int{16, partition.Rest}}
	out, r = create(t, o)
	if out.Exit != ExitDone || r.Resources.TotalSMs != 60 || len(r.Resources.Partitions[1].SMIDs) != 44 {
		t.Errorf("exit %d, %s\n%s", out.Exit, out.Why, dump(r))
	}
	leftNothing(t, out)
}

// A prerequisite inspection makes nothing, and its exit code tells what is there from what is not and from what could not be asked.
func TestPrerequisite(t *testing.T) {
	for _, c := range []struct {
		name    string
		host    gputest.Host
		uuid    string
		exit    int
		runtime string
		missing int
	}{
		{"H200", testHost(), testUUID, ExitDone, "", 0},
		{"with a runtime", testHost(func(h *gputest.Host) { h.Runtime = []gputest.Runtime{{Version: 13010}} }), testUUID, ExitDone, "13.1", 0},
		{"without streams of Green Contexts", testHost(withVersion(12040)), testUUID, ExitNo, "", 2},
		{"old driver", testHost(withVersion(11040)), testUUID, ExitNo, "", 7},
		{"another GPU", testHost(), "GPU-99999999-2222-3333-4444-555555555555", ExitNo, "", 1},
		{"no driver", testHost(func(h *gputest.Host) { h.CUDA = nil }), testUUID, ExitBlocked, "", 1},
		{"stub", testHost(func(h *gputest.Host) { h.CUDA[0].Init = 34 }), testUUID, ExitBlocked, "", 1},
	} {
		m := gputest.Start(t, c.host)
		p, code := Prerequisite(t.Context(), Common{GPUUUID: c.uuid, Root: m.Root, Env: append(m.Env, "CUDA_VISIBLE_DEVICES=0")}, 0)
		runtime := ""
		if p.RuntimeVersion != nil {
			runtime = *p.RuntimeVersion
		}
		if code != c.exit || p.Met != (c.exit == ExitDone) || runtime != c.runtime || len(p.Missing) != c.missing || (runtime == "") == (p.RuntimeReason == "") {
			t.Errorf("%s: exit %d\n%s", c.name, code, dump(p))
		}
		if p.CreatedContext || p.LaunchedWorkload || p.MutatedState || len(m.Mutations()) > 0 {
			t.Errorf("%s: made something: %q", c.name, m.Mutations())
		}
		if c.exit == ExitDone && (len(p.DriverSymbols) != 6 || p.SMCount.Or(0) != 132 || len(p.Visible.UUIDs) != 1 || *p.Visible.Variable != "0") {
			t.Errorf("%s\n%s", c.name, dump(p))
		}
	}
}
