package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cotenant/internal/gputest"
	"cotenant/internal/ledger"
	"cotenant/internal/scrape"
)

// askGPUs asks a fake host's GPUs as often as is told.
func askGPUs(t *testing.T, h gputest.Host, from string, times int) (g *gpus, lists [][]ledger.GPUUsage, reasons []string) {
	t.Helper()
	m := gputest.Start(t, h)
	g = newGPUs(context.Background(), GPUOptions{From: from, Root: m.Root, Env: m.Env}, true, nil, 5*time.Second)
	g.commit = committer(t)
	for range times {
		list, reason := g.sample(context.Background())
		lists, reasons = append(lists, list), append(reasons, reason)
	}
	return g, lists, reasons
}

func committer(t *testing.T) *ledger.Committer {
	t.Helper()
	c, err := ledger.NewCommitter(strings.Repeat("5", 64))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func twoGPUs() gputest.Host {
	h := gputest.Named("virtual-two-a10")
	h.CUDA, h.GPUs = nil, slices.Clone(h.GPUs)
	return h
}

func TestGPUsByNVML(t *testing.T) {
	h := twoGPUs()
	_, lists, reasons := askGPUs(t, h, GPUAuto, 1)
	if len(lists[0]) != 2 || reasons[0] != "" {
		t.Fatalf("%+v, %q", lists[0], reasons[0])
	}
	u := lists[0][0]
	if u.GPU != committer(t).Commit(ledger.LabelGPU, []byte(h.GPUs[0].UUID)) || u.Source != ledger.GPUByNVML || u.EnergyMJ != ledger.Some(123_456_789) ||
		u.MemoryTotalBytes.Or(0) != int64(h.GPUs[0].Memory) || !u.PowerMW.OK || !u.BusyPPM.OK || !u.SMMHz.OK || u.Xid.OK {
		t.Errorf("%+v", u)
	}
	_, lists, _ = askGPUs(t, h, h.GPUs[1].UUID, 1)
	if len(lists[0]) != 1 || lists[0][0].GPU != committer(t).Commit(ledger.LabelGPU, []byte(h.GPUs[1].UUID)) {
		t.Errorf("by UUID: %+v", lists[0])
	}
	_, lists, reasons = askGPUs(t, h, "GPU-of-somebody-else", 1)
	if len(lists[0]) != 0 || !strings.Contains(reasons[0], "no such GPU") {
		t.Errorf("an unknown UUID: %+v, %q", lists[0], reasons[0])
	}
}

// A reading that is refused is absent, not 0.
func TestGPURefusals(t *testing.T) {
	h := twoGPUs()
	h.GPUs[0].Codes = map[string]int{"nvmlDeviceGetPowerUsage": 3, "nvmlDeviceGetTotalEnergyConsumption": 3}
	_, lists, reasons := askGPUs(t, h, GPUAuto, 1)
	if len(lists[0]) != 2 || reasons[0] != "" || lists[0][0].PowerMW.OK || lists[0][0].EnergyMJ.OK || !lists[0][0].MemoryUsedBytes.OK || !lists[0][1].EnergyMJ.OK {
		t.Errorf("%+v, %q", lists[0], reasons[0])
	}
}

const gpuChildVariable = "COTENANT_SOAK_GPU_CHILD"

// gpuChild asks as TestHungDriverCostsOneSample tells it: a process with a call that hangs ends with the fake machine.
func gpuChild(text string) int {
	var o GPUOptions
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return 1
	}
	g := newGPUs(context.Background(), o, true, nil, 3*time.Second)
	g.commit, _ = ledger.NewCommitter(ledger.NewSecret())
	for range 4 {
		list, reason := g.sample(context.Background())
		fmt.Println(len(list), reason)
	}
	return 0
}

func TestHungDriverCostsOneSample(t *testing.T) {
	h := twoGPUs()
	h.Faults = []gputest.Fault{{Symbol: "nvmlDeviceGetPowerUsage", Call: 3, Action: gputest.Hang}} // the two calls of the child that tries are well
	m := gputest.Start(t, h)
	text, err := json.Marshal(GPUOptions{From: h.GPUs[0].UUID, Root: m.Root, Env: m.Env})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), gpuChildVariable+"="+string(text))
	out, err := cmd.CombinedOutput()
	if want := "1 \n1 \n0 " + errHung.Error() + "\n0 " + errHung.Error() + "\n"; err != nil || string(out) != want {
		t.Errorf("%v, got\n%swant\n%s", err, out, want)
	}
}

// Without NVML, or with one that can't be initialised, nvidia-smi is asked.
func TestGPUsBySMI(t *testing.T) {
	h := twoGPUs()
	h.Faults = []gputest.Fault{{Symbol: "nvmlInitWithFlags", Code: 18}, {Symbol: "nvmlInit_v2", Code: 18}}
	_, lists, reasons := askGPUs(t, h, GPUAuto, 2)
	for i := range lists {
		if len(lists[i]) != 2 || reasons[i] != "" || lists[i][0].Source != ledger.GPUBySMI || lists[i][0].EnergyMJ.OK || !lists[i][0].PowerMW.OK {
			t.Errorf("%+v, %q", lists[i], reasons[i])
		}
	}
	h.SMI = nil
	g, lists, reasons := askGPUs(t, h, GPUAuto, 1)
	if g.source != "" || len(lists[0]) != 0 || !strings.Contains(reasons[0], "NVML") || !strings.Contains(reasons[0], "nvidia-smi") {
		t.Errorf("neither: %+v, %q", lists[0], reasons[0])
	}
}

// A machine without a driver is asked nothing: no library is loaded, no program started.
func TestNoDriver(t *testing.T) {
	root := t.TempDir()
	marker := filepath.Join(root, "ran")
	if err := os.WriteFile(filepath.Join(root, "nvidia-smi"), []byte("#!/bin/sh\ntouch "+marker+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from, why string
		here      bool
	}{{GPUAuto, "no NVIDIA driver", true}, {GPUAuto, "isn't on this machine", false}, {GPUNone, "no GPU was asked for", true}, {"GPU-1", "no NVIDIA driver", false}} {
		g := newGPUs(context.Background(), GPUOptions{From: c.from, Root: root, Env: []string{"PATH=" + root}}, c.here, nil, 10*time.Second)
		list, reason := g.sample(context.Background())
		if list == nil || len(list) != 0 || !strings.Contains(reason, c.why) {
			t.Errorf("%s: %v, %q", c.from, list, reason)
		}
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("nvidia-smi was run")
	}
}

func TestGPUsByDCGM(t *testing.T) {
	text, err := os.ReadFile("../scrape/testdata/dcgm.txt")
	if err != nil {
		t.Fatal(err)
	}
	status := 200
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		w.Write(text)
	}))
	defer srv.Close()
	g := newGPUs(context.Background(), GPUOptions{From: srv.URL + "/metrics"}, false, &scrape.Client{HTTP: srv.Client()}, 10*time.Second)
	g.commit = committer(t)
	list, reason := g.sample(context.Background())
	if len(list) != 3 || reason != "" || list[0].Source != ledger.GPUByDCGM || list[0].EnergyMJ != ledger.Some(2_147_483_700) || list[0].Xid != ledger.Some(0) {
		t.Errorf("%+v, %q", list, reason)
	}
	status = 500
	if list, reason = g.sample(context.Background()); len(list) != 0 || !strings.Contains(reason, "500") {
		t.Errorf("an exporter that fails: %+v, %q", list, reason)
	}
}

func TestGPUFlag(t *testing.T) {
	for from, ok := range map[string]bool{"": true, "auto": true, "none": true, "GPU-1": true, "http://node:9400/metrics": true, "0": false, "all": false, "ftp://x": false, "http://": false} {
		o := GPUOptions{From: from}
		if err := o.check(); (err == nil) != ok {
			t.Errorf("%q: %v", from, err)
		}
	}
}
