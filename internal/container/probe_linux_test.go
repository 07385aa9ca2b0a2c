package container

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cotenant/internal/container/enginetest"
	"cotenant/internal/gputest"
)

// driverLayer is a layer with the fake driver of one H200.
func driverLayer(t *testing.T) string {
	t.Helper()
	m := gputest.Start(t, gputest.Host{Name: "container", CUDA: []gputest.CUDA{{Version: 13000}}, NVML: []gputest.NVML{{Driver: "580.159.04", CUDA: 13000}},
		GPUs: []gputest.GPU{{UUID: testUUID, Name: "NVIDIA H200", Bus: "00000000:06:00.0", CC: "9.0", SMs: 132, Memory: 150754820096, Reserved: 600 << 20, ECC: true}}})
	return enginetest.Layer(t, m.ImageFiles(t))
}

// cotenant builds the program as it is released.
func cotenant(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cotenant")
	cmd := exec.Command("go", "build", "-o", path, "cotenant/cmd/cotenant")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// The program itself, in an image that has glibc and a driver, tells what it sees through the engine, and makes Green Contexts.
func TestProbeInContainer(t *testing.T) {
	e, base := engineWith(t, enginetest.QuietHook)
	have(t, e, base)
	image := push(t, enginetest.Config{Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}, enginetest.Rootfs(t), driverLayer(t))
	program := cotenant(t)
	play := func(t *testing.T, args ...string) (*Outcome, map[string]any) {
		t.Helper()
		o := testOptions("")
		o.Arguments, o.Env, o.Images, o.Deadline, o.program = append([]string{"probe"}, args...), e.Env, []Image{image}, time.Minute, program
		p, err := NewPlan(o)
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.Run(t.Context())
		if err != nil || out.Ended != Exited {
			t.Fatalf("%v: %+v\n%s", err, out, out.Stderr)
		}
		nothingLeft(t, e)
		var document map[string]any
		if err := json.Unmarshal(out.Stdout, &document); err != nil {
			t.Fatalf("exit %d, stdout %.300q, stderr %q: %v", out.ExitCode, out.Stdout, out.Stderr, err)
		}
		return out, document
	}
	t.Run("prerequisite", func(t *testing.T) {
		out, d := play(t, "prerequisite", "--gpu-uuid", testUUID, "--json")
		visible, _ := d["visible_devices"].(map[string]any)
		if out.ExitCode != 0 || d["operation"] != "green_context_prerequisite_inspect" || d["prerequisites_met"] != true || d["created_context"] != false ||
			visible["cuda_visible_devices"] != testUUID || visible["cuda_device_order"] != "PCI_BUS_ID" {
			t.Errorf("exit %d: %s\n%s", out.ExitCode, out.Stdout, out.Stderr)
		}
	})
	t.Run("create", func(t *testing.T) {
		out, d := play(t, "create", "--gpu-uuid", testUUID, "--sms", "16,rest", "--confirm", "--json")
		resources, _ := d["resources"].(map[string]any)
		partitions, _ := resources["partitions"].([]any)
		if d["operation"] != "green_context_probe" || d["mutated_state"] != true || len(partitions) != 2 || out.ExitCode != 0 {
			t.Errorf("exit %d: %s\n%s", out.ExitCode, out.Stdout, out.Stderr)
		}
	})
	t.Run("another GPU", func(t *testing.T) {
		other := strings.Replace(testUUID, "1", "9", 1)
		out, d := play(t, "prerequisite", "--gpu-uuid", other, "--json")
		missing, _ := d["missing"].([]any)
		if out.ExitCode != 3 || !slices.Contains(missing, any("gpu "+other)) {
			t.Errorf("exit %d: %s", out.ExitCode, out.Stdout)
		}
	})
}
