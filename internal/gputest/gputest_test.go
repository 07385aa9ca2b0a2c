package gputest

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cotenant/internal/bounded"
)

func TestMain(m *testing.M) {
	code := m.Run()
	Cleanup()
	os.Exit(code)
}

var small = Host{
	Name: "small",
	CUDA: []CUDA{{Version: 13000}},
	NVML: []NVML{{Driver: "580.159.04", CUDA: 13000}},
	SMI:  &SMI{},
	MPS:  &MPS{Version: 13000, Daemons: []MPSDaemon{{PID: 4711, Servers: []int{4712}}}},
	GPUs: []GPU{{UUID: "GPU-11111111-2222-3333-4444-555555555555", Name: "NVIDIA H200, Ltd", Bus: "00000000:06:00.0", CC: "9.0", SMs: 132,
		Memory: 141 << 30, ECC: true, SMI: map[string]string{"fan.speed": "[Unknown Error]"}}},
}

func (m *Machine) run(t *testing.T, stdin, name string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(m.Path("/usr/bin/"+name), args...)
	cmd.Env = m.Env
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if _, failed := err.(*exec.ExitError); err != nil && !failed {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestNvidiaSMI(t *testing.T) {
	m := Start(t, small)
	out, code := m.run(t, "", "nvidia-smi", "--query-gpu=index,name,memory.total,fan.speed,compute_cap", "--format=csv,noheader,nounits")
	if want := "0, NVIDIA H200, Ltd, 144384, [Unknown Error], 9.0\n"; out != want || code != 0 {
		t.Errorf("got %q, %d, want %q", out, code, want)
	}
	out, code = m.run(t, "", "nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv")
	if want := "uuid, memory.total\nGPU-11111111-2222-3333-4444-555555555555, 144384 MiB\n"; out != want || code != 0 {
		t.Errorf("got %q, %d, want %q", out, code, want)
	}
	out, code = m.run(t, "", "nvidia-smi", "--query-gpu=multiprocessor_count", "--format=csv")
	if want := "Field \"multiprocessor_count\" is not a valid field to query.\n\n"; out != want || code != 2 {
		t.Errorf("got %q, %d, want %q", out, code, want)
	}
	if got := m.Mutations(); len(got) != 0 {
		t.Errorf("mutations %q", got)
	}
	m.run(t, "", "nvidia-smi", "-mig", "1")
	if got := m.Mutations(); len(got) != 1 {
		t.Errorf("mutations %q, want one", got)
	}
}

func TestMPSControl(t *testing.T) {
	m := Start(t, small)
	for _, c := range []struct{ stdin, want string }{
		{"get_server_list\n", "4712\n"},
		{"lspart\n", "Unknown command \"lspart\"\n"},
		{"sm_partition add GPU-1 2\n", "Unknown command \"sm_partition\"\n"},
	} {
		if out, code := m.run(t, c.stdin, "nvidia-cuda-mps-control"); out != c.want || code != 0 {
			t.Errorf("%q: got %q, %d, want %q, 0", c.stdin, out, code, c.want)
		}
	}
	if out, code := m.run(t, "", "nvidia-cuda-mps-control", "-v"); code != 0 || out != "CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000\n" {
		t.Errorf("-v: %q, %d", out, code)
	}
	if got := m.Mutations(); len(got) != 1 || !strings.Contains(got[0], "sm_partition add") {
		t.Errorf("mutations %q", got)
	}
	m.Env = append(m.Env, "CUDA_MPS_PIPE_DIRECTORY="+m.Path("/nowhere"))
	if out, code := m.run(t, "ps\n", "nvidia-cuda-mps-control"); code != 1 || out != "Cannot find MPS control daemon process\n" {
		t.Errorf("no daemon: %q, %d", out, code)
	}
}

// Every host has a name of its own and can be started.
func TestHosts(t *testing.T) {
	seen := make(map[string]bool)
	uuids := make(map[string]string)
	for _, h := range Hosts() {
		if seen[h.Name] || h.Name == "" || h.Note == "" {
			t.Errorf("host %q, %q: name missing or taken", h.Name, h.Note)
		}
		seen[h.Name] = true
		for _, g := range h.GPUs {
			if other := uuids[g.UUID]; other != "" && other != h.Name && !strings.HasPrefix(h.Name, "rtx5090-docker") && !strings.HasPrefix(h.Name, "wsl2") {
				t.Errorf("%s has a UUID of %s", h.Name, other)
			}
			uuids[g.UUID] = h.Name
		}
		t.Run(h.Name, func(t *testing.T) {
			t.Parallel()
			m := Start(t, h)
			if len(m.Log()) != 0 {
				t.Errorf("log %q", m.Log())
			}
		})
	}
	if len(seen) < 40 {
		t.Errorf("%d hosts, at least 40 are promised", len(seen))
	}
	t.Logf("%d hosts", len(seen))
}

// What hangs, hangs in the way that its name says, and a bounded run returns all the same.
func TestHungPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		state   string
		outcome bounded.Outcome
		out     string
	}{
		"smi-uninterruptible": {"D", bounded.TimedOut, ""},
		"smi-grandchild":      {"S", bounded.TimedOut, "GPU 0: partial output\n"},
	} {
		const limit = 3 * time.Second // until it hangs as it should, on a busy machine
		m := Start(t, Named(name))
		start := time.Now()
		r := bounded.Run(context.Background(), bounded.Command{Path: m.Path("/usr/bin/nvidia-smi"), Env: m.Env, Timeout: limit})
		if took := time.Since(start); took > limit+bounded.Overrun+20*time.Second {
			t.Errorf("%s took %v", name, took)
		}
		if r.Outcome != c.outcome || r.State != c.state || !r.PipesHeld || string(r.Stdout) != c.out {
			t.Errorf("%s: %+v, %q", name, r, r.Stdout)
		}
	}
}

func TestDocker(t *testing.T) {
	m := Start(t, Named("docker-host-cdi"))
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", m.Path("/var/run/docker.sock"))
	}}}
	defer c.CloseIdleConnections()
	for path, want := range map[string]int{"/version": 200, "/v1.24/info": 200, "/containers/json": 404} {
		res, err := c.Get("http://docker" + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
	}
	res, err := c.Post("http://docker/containers/create", "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if got := m.Mutations(); res.StatusCode != 405 || len(got) != 1 {
		t.Errorf("%d, %q", res.StatusCode, got)
	}
}

// What PTX's matrix instructions, tensor copies and barriers do, against plain loops.
func TestMatrixFunctions(t *testing.T) {
	if out, err := exec.Command(build(t, "ptx_matrix_test.c", "ptx_matrix_test")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
