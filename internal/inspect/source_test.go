package inspect

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cotenant/internal/observe"
)

// root makes a file system from paths and contents; a path that ends in a slash is a folder, "-> x" a link.
func root(t *testing.T, files map[string]string) tree {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if to, ok := strings.CutPrefix(content, "-> "); ok {
			if err := os.Symlink(to, path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return tree{dir}
}

func TestContainerKinds(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		env   []string
		want  string
	}{
		"none":             {map[string]string{"/proc/self/cgroup": "0::/user.slice/session-1.scope\n"}, nil, "none"},
		"docker file":      {map[string]string{"/.dockerenv": "", "/proc/self/cgroup": "0::/\n"}, nil, "docker"},
		"docker cgroup":    {map[string]string{"/proc/self/cgroup": "4:memory:/docker/0123456789ab\n"}, nil, "docker"},
		"dockerd's own":    {map[string]string{"/proc/self/cgroup": "0::/system.slice/docker.service\n"}, nil, "none"},
		"podman":           {map[string]string{"/run/.containerenv": "engine=\"podman-5\"\n", "/proc/self/cgroup": "0::/\n"}, nil, "podman"},
		"kubernetes":       {map[string]string{"/.dockerenv": "", "/proc/self/cgroup": "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope\n"}, nil, "kubernetes"},
		"kubernetes env":   {map[string]string{"/proc/self/cgroup": "0::/\n"}, []string{"KUBERNETES_SERVICE_HOST=10.0.0.1"}, "kubernetes"},
		"lxc":              {map[string]string{"/proc/self/cgroup": "1:name=systemd:/lxc/box\n"}, nil, "lxc"},
		"systemd":          {map[string]string{"/run/systemd/container": "systemd-nspawn\n", "/proc/self/cgroup": "0::/\n"}, nil, "systemd-nspawn"},
		"apptainer":        {map[string]string{"/.singularity.d/": "", "/proc/self/cgroup": "0::/\n"}, nil, "apptainer"},
		"an overlay alone": {map[string]string{"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": "1 0 0:1 / / rw - overlay overlay rw\n"}, nil, "other"},
		"nothing to read":  {nil, nil, "unknown"},
	} {
		c := container(root(t, tc.files), "linux", tc.env)
		if c.Kind != tc.want || (c.Status == observe.SupportedProven) != (tc.want != "unknown") {
			t.Errorf("%s: %s, %s %s", name, c.Kind, c.Status, c.Reason)
		}
	}
	if c := container(root(t, nil), "windows", nil); c.Status != observe.BlockedByEnvironment {
		t.Errorf("windows: %s", c.Status)
	}
}

func TestBusID(t *testing.T) {
	for in, want := range map[string]string{
		"00000000:06:00.0": "0000:06:00.0", "0000:06:00.0": "0000:06:00.0", "0000000F:01:00.0": "000f:01:00.0", "00010000:C1:00.0": "10000:c1:00.0",
		"0000:00.06.00": "0000:00:06.0", "": "", "gpu": "gpu", "[N/A]": "[N/A]",
	} {
		if got := busID(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestPCIDriversAndVirtualFunctions(t *testing.T) {
	const at = "/sys/bus/pci/devices/"
	tr := root(t, map[string]string{
		at + "0000:01:00.0/vendor": "0x10de\n", at + "0000:01:00.0/class": "0x030000\n", at + "0000:01:00.0/device": "0x2b85\n",
		at + "0000:01:00.0/driver": "-> ../../../bus/pci/drivers/vfio-pci", at + "0000:01:00.0/power/runtime_status": "suspended\n",
		at + "0000:01:00.1/vendor": "0x10de\n", at + "0000:01:00.1/class": "0x040300\n", // its audio function
		at + "0000:02:00.4/vendor": "0x10de\n", at + "0000:02:00.4/class": "0x030200\n", at + "0000:02:00.4/physfn": "-> ../0000:02:00.0",
	})
	p := pci(tr, "linux")
	want := []PCIDevice{{BusID: "0000:01:00.0", Device: "0x2b85", Class: "0x030000", Driver: "vfio-pci", Runtime: "suspended"},
		{BusID: "0000:02:00.4", Class: "0x030200", VirtualOf: "0000:02:00.0"}}
	if diff := cmp.Diff(want, p.Devices); diff != "" {
		t.Error(diff)
	}
	f := Gather(t.Context(), Options{Root: tr.root, Env: []string{"PATH=" + tr.root}})
	r := Judge(f)
	if len(r.GPUs) != 2 || r.GPUs[0].State != stateUndriven || !strings.Contains(r.GPUs[0].Mechanisms[GreenContexts].Reason, "vfio-pci") {
		t.Errorf("%+v", r.GPUs)
	}
}

// A pipe where a file should be must not be waited for.
func TestOnlyRegularFilesAreRead(t *testing.T) {
	tr := root(t, map[string]string{"/etc/cdi/good.yaml": "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices: [{name: 0}, {name: GPU-1}]\n",
		"/etc/cdi/bad.yaml": "kind: nvidia.com/gpu\ndevices: [", "/etc/cdi/other.json": `{"kind": "vendor.com/nic", "devices": []}`,
		"/etc/cdi/json.json": `{"cdiVersion":"0.5.0","kind":"nvidia.com/mig","devices":[{"name":"all"}]}`})
	makePipe(t, tr.path("/etc/cdi/pipe.yaml"))
	c := cdi(tr, "linux")
	var got []string
	for _, s := range c.Specs {
		got = append(got, fmt.Sprintf("%s %s %v %v", filepath.Base(s.Path), s.Kind, s.Devices, s.Reason != ""))
	}
	want := []string{"bad.yaml  [] true", "good.yaml nvidia.com/gpu [0 GPU-1] false", "pipe.yaml  [] true", "json.json nvidia.com/mig [all] false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// engine serves a Docker engine on a socket under a root.
func engine(t *testing.T, tr tree, h http.Handler) {
	t.Helper()
	if err := os.MkdirAll(tr.path("/var/run"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", tr.path("/var/run/docker.sock"))
	if err != nil {
		t.Skip(err) // no unix sockets, or a temporary folder with too long a name
	}
	s := &http.Server{Handler: h}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
}

func TestDockerEngine(t *testing.T) {
	answer := func(body string, code int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				t.Errorf("%s %s", r.Method, r.URL)
			}
			w.WriteHeader(code)
			fmt.Fprint(w, body)
		})
	}
	release := make(chan struct{})
	hang := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	host := func() bool { return false }
	for name, tc := range map[string]struct {
		h    http.Handler
		want observe.Status
	}{
		"garbage":   {answer("<html>", 200), observe.Unknown},
		"refused":   {answer(`{"message":"no"}`, 403), observe.Unknown},
		"deep":      {answer(strings.Repeat("[", 20000), 200), observe.Unknown},
		"too much":  {answer(`"`+strings.Repeat("x", maxAnswer+10), 200), observe.Unknown},
		"no answer": {hang, observe.Hung},
		"empty":     {answer(`{}`, 200), observe.SupportedProven},
	} {
		tr := shortRoot(t)
		engine(t, tr, tc.h)
		limit := 30 * time.Second
		if tc.want == observe.Hung {
			limit = 500 * time.Millisecond
		}
		if d := docker(t.Context(), tr, "linux", nil, host, limit); d.Status != tc.want {
			t.Errorf("%s: %s %s", name, d.Status, d.Reason)
		}
	}
}

// shortRoot is a root whose name leaves room for a socket's path.
func shortRoot(t *testing.T) tree {
	t.Helper()
	dir, err := os.MkdirTemp("", "i")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return tree{dir}
}

// Connecting to the socket of an engine that doesn't run would make systemd start it.
func TestDockerIsNotStarted(t *testing.T) {
	tr := shortRoot(t)
	asked := false
	engine(t, tr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked = true; fmt.Fprint(w, "{}") }))
	for _, dir := range []string{"/run/systemd/system", "/proc/77"} {
		if err := os.MkdirAll(tr.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	host := func() bool { return false }
	d := docker(t.Context(), tr, "linux", nil, host, time.Second)
	if asked || d.Status != observe.Unavailable || !strings.Contains(d.Reason, "start it") {
		t.Errorf("asked %v: %s %s", asked, d.Status, d.Reason)
	}
	if err := os.WriteFile(tr.path("/proc/77/comm"), []byte("dockerd\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if d := docker(t.Context(), tr, "linux", nil, host, 5*time.Second); !asked || d.Status != observe.SupportedProven {
		t.Errorf("running: asked %v: %s %s", asked, d.Status, d.Reason)
	}
	// In a container the engine's process is somebody else's, and the mounted socket is there to be used.
	inside := func() bool { return true }
	if err := os.Remove(tr.path("/proc/77/comm")); err != nil {
		t.Fatal(err)
	}
	if d := docker(t.Context(), tr, "linux", nil, inside, 5*time.Second); d.Status != observe.SupportedProven {
		t.Errorf("in a container: %s %s", d.Status, d.Reason)
	}
	for _, address := range []string{"tcp://10.0.0.1:2375", "ssh://host"} {
		if d := docker(t.Context(), tr, "linux", []string{"DOCKER_HOST=" + address}, host, time.Second); d.Status != observe.Unavailable || len(d.Evidence) > 0 {
			t.Errorf("%s: %s %s", address, d.Status, d.Reason)
		}
	}
}

func TestSMIFieldsThatAVersionLacks(t *testing.T) {
	tr := root(t, map[string]string{"/usr/bin/nvidia-smi": "#!/bin/sh\ncase \"$*\" in\n*compute_cap*) echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2 ;;\n" +
		"*mig.mode.current*) echo 'Field \"mig.mode.current\" is not a valid field to query.'; exit 2 ;;\n" +
		"*) echo '0, GPU-00000000-1111-2222-3333-444444444444, 00000000:06:00.0, 450.1, 11441 MiB, Default, [N/A], Disabled, Tesla, K80' ;;\nesac\n"})
	if err := os.Chmod(tr.path("/usr/bin/nvidia-smi"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := smi(t.Context(), tr, "linux", []string{"PATH=/usr/bin:/bin"}, 20*time.Second)
	// A real nvidia-smi on PATH comes first; this machine's tests don't care which is asked.
	if s.Path != "/usr/bin/nvidia-smi" {
		t.Skip("this machine has nvidia-smi")
	}
	if s.Status != observe.SupportedProven || len(s.Rows) != 1 || len(s.Evidence) != 3 {
		t.Fatalf("%s %s %+v", s.Status, s.Reason, s)
	}
	r := s.Rows[0]
	if r.Name.Or("") != "Tesla, K80" || r.MemoryMiB.Or("") != "11441" || r.ComputeCapability.OK() || r.MIGPending.Reason != "n/a" || r.ComputeCapability.Reason == "" {
		t.Errorf("%+v", r)
	}
}

func TestSMIStatuses(t *testing.T) {
	for _, tc := range []struct {
		script string
		want   observe.Status
	}{
		{"echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", observe.BlockedByEnvironment},
		{"echo \"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\"; exit 9", observe.Unavailable},
		{"echo \"NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\" >&2; exit 12", observe.Unavailable},
		{"echo 'No devices were found'; exit 6", observe.Unavailable},
		{"echo 'No devices were found'", observe.Unavailable}, // some versions exit with 0
		{"echo 'Failed to initialize NVML: Insufficient Permissions'; exit 4", observe.PermissionDenied},
		{"exit 3", observe.Unknown},
		{"kill -9 $$", observe.Unknown},
		{"", observe.Unknown},
	} {
		tr := root(t, map[string]string{"/bin/nvidia-smi": "#!/bin/sh\n" + tc.script + "\n"})
		if err := os.Chmod(tr.path("/bin/nvidia-smi"), 0o755); err != nil {
			t.Fatal(err)
		}
		s := smi(t.Context(), tr, "linux", []string{"PATH=" + tr.path("/bin")}, 20*time.Second)
		if s.Status != tc.want || (s.Reason == "") != (s.Status == observe.SupportedProven) {
			t.Errorf("%s: %s %s", tc.script, s.Status, s.Reason)
		}
	}
}

// Where NVIDIA has no driver, or no library can be opened, each source says so and the report is whole.
func TestOtherSystems(t *testing.T) {
	for _, os := range []string{"darwin", "windows"} {
		f := Gather(t.Context(), Options{Root: t.TempDir(), Env: []string{"PATH="}, OS: os})
		r := Judge(f)
		checkReport(t, r)
		for _, name := range []string{"nvml", "libcuda", "libcudart", "mps_control", "pci", "driver_files", "kernel", "container", "wsl", "tegra", "gvisor", "cdi", "container_toolkit", "processes"} {
			if s := r.Sources[name]; s.Status != observe.BlockedByEnvironment {
				t.Errorf("%s: %s is %s, %s", os, name, s.Status, s.Reason)
			}
		}
		if len(r.GPUs) != 0 || r.Host.Platform != os {
			t.Errorf("%s: %+v", os, r)
		}
	}
}

// The seed's host from Windows itself: nvidia-smi is the only witness.
func TestNativeWindows(t *testing.T) {
	tr := root(t, map[string]string{"/bin/nvidia-smi.exe": "#!/bin/sh\necho '0, GPU-00000000-1111-2222-3333-444444444444, 00000000:01:00.0, 610.62, 32607, Default, [N/A], [N/A], 12.0, Enabled, NVIDIA GeForce RTX 5090'\n" +
		"echo '1, GPU-aaaaaaaa-1111-2222-3333-444444444444, 00000000:02:00.0, 610.62, 97887, Default, [N/A], [N/A], 12.0, Disabled, NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition'\n"})
	if err := os.Chmod(tr.path("/bin/nvidia-smi.exe"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := Judge(Gather(t.Context(), Options{Root: tr.root, Env: []string{"PATH=" + tr.path("/bin")}, OS: "windows"}))
	checkReport(t, r)
	if len(r.GPUs) != 2 || r.Host.Driver.SMI.Or("") != "610.62" {
		t.Fatalf("%+v", r.GPUs)
	}
	g := r.GPUs[0]
	want := map[string]observe.Status{GreenContexts: observe.BlockedByEnvironment, Workqueues: observe.BlockedByEnvironment, Heterogeneous: observe.BlockedByEnvironment,
		MPSClassic: observe.BlockedByEnvironment, MPSStatic: observe.BlockedByEnvironment, MPSv3: observe.BlockedByEnvironment, MIG: observe.BlockedByEnvironment, TimeSlicing: observe.SupportedDeclared}
	for m, status := range want {
		if g.Mechanisms[m].Status != status {
			t.Errorf("%s: %s %s", m, g.Mechanisms[m].Status, g.Mechanisms[m].Reason)
		}
	}
	if g.ComputeCapability.Or("") != "12.0" || g.MemoryBytes.Or(0) != 32607<<20 || g.Name.Or("") != "NVIDIA GeForce RTX 5090" || !g.DisplayActive.Or(false) || g.SMCount.OK() {
		t.Errorf("%+v", g)
	}
}

func TestTimeoutIsChecked(t *testing.T) {
	for d, ok := range map[time.Duration]bool{0: true, time.Second: true, MaxTimeout: true, MaxTimeout + 1: false, -1: false} {
		if err := (Options{Timeout: d}).Check(); (err == nil) != ok {
			t.Errorf("%v: %v", d, err)
		}
	}
}

// A canceled inspection still ends in a whole report.
func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	start := time.Now()
	r := Judge(Gather(ctx, Options{Root: t.TempDir(), Env: []string{"PATH="}}))
	checkReport(t, r)
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
}

// BenchmarkNoDriver is a whole inspection of a machine without a GPU and a driver.
func BenchmarkNoDriver(b *testing.B) {
	for b.Loop() {
		r := Run(context.Background(), Options{})
		if len(r.GPUs) > 0 || r.Sources["nvml"].Status == observe.SupportedProven {
			b.Skip("this machine has a GPU")
		}
	}
}
