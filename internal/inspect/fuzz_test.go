package inspect

import (
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"cotenant/internal/observe"
)

// corpus adds every file that matches, and fails where there is none.
func corpus(t testing.TB, pattern string, add func([]byte)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no corpus at %s: %v", pattern, err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		add(data)
	}
}

func TestSMICorpus(t *testing.T) {
	rows := 0
	corpus(t, "smi/*", func(data []byte) { rows += len(parseSMI(string(data), smiFields)) })
	if rows != 4 { // one each of H200 and GB10, two of the laptop; Orin's names no GPU
		t.Errorf("%d rows", rows)
	}
}

// Whatever nvidia-smi prints, a row names a GPU and holds no raw null.
func FuzzSMI(f *testing.F) {
	corpus(f, "smi/*", func(data []byte) { f.Add(string(data)) })
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range parseSMI(text, smiFields) {
			if !r.UUID.OK() && !r.PCI.OK() {
				t.Errorf("a row that names nothing: %+v", r)
			}
			for _, v := range []observe.Value[string]{r.Index, r.Name, r.MemoryMiB, r.ComputeMode, r.MIGCurrent, r.ComputeCapability} {
				if s, ok := v.Get(); ok && (len(s) > observe.MaxText || s == "" || s == "[N/A]") {
					t.Errorf("value %q", s)
				} else if !ok && v.Reason == "" {
					t.Error("absent without a reason")
				}
			}
			smiMiB(r.MemoryMiB)
			capability(r.ComputeCapability)
		}
	})
}

func TestCDICorpus(t *testing.T) {
	n := 0
	corpus(t, "cdi/*", func(data []byte) {
		n++
		spec, relevant := readCDI(root(t, map[string]string{"/etc/cdi/x.yaml": string(data)}), "/etc/cdi/x.yaml")
		if !relevant || (spec.Kind == "") == (spec.Reason == "") {
			t.Errorf("%s: %+v", data, spec)
		}
	})
	if n < 4 {
		t.Errorf("%d specifications", n)
	}
}

func FuzzCDI(f *testing.F) {
	corpus(f, "cdi/*", func(data []byte) { f.Add(data) })
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(dir, "x.yaml")
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		spec, _ := readCDI(tree{dir}, "/x.yaml")
		if len(spec.Kind) > observe.MaxText || !utf8.ValidString(spec.Kind+spec.Version+spec.Reason) {
			t.Errorf("%+v", spec)
		}
	})
}

// Files of the kernel's, a toolkit's and a package's, whatever is in them.
func FuzzFiles(f *testing.F) {
	f.Add([]byte("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"))
	f.Add([]byte("Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-????????-????-????-????-????????????\nGPU Excluded:\t Yes\n"))
	f.Add([]byte(`{"cuda": {"version": "13.0.2"}}`))
	f.Add([]byte("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.0+cu130\n\nbody"))
	f.Add([]byte("[nvidia-container-runtime]\nmode = \"cdi\"\n"))
	f.Add([]byte("MemTotal: 18446744073709551615 kB\n"))
	f.Add([]byte("0::/kubepods.slice\x00\n"))
	dir := f.TempDir()
	files := []string{"/proc/driver/nvidia/version", "/proc/driver/nvidia/gpus/0000:06:00.0/information", "/usr/local/cuda-13.0/version.json", "/proc/meminfo", "/proc/self/cgroup",
		"/proc/self/mountinfo", "/proc/self/uid_map", "/proc/device-tree/compatible", "/etc/nv_tegra_release", "/usr/lib/python3/dist-packages/torch-1.dist-info/METADATA",
		"/usr/lib/python3/dist-packages/torch/version.py", "/etc/nvidia-container-runtime/config.toml", "/proc/sys/kernel/osrelease", "/run/systemd/container"}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		tr := tree{dir}
		kernel(tr, "linux")
		container(tr, "linux", nil)
		wsl(tr, "linux", string(data))
		tegra(tr, "linux")
		driverFiles(tr, "linux")
		frameworks(tr, nil)
		containerToolkit(t.Context(), tr, "linux", []string{"PATH="}, 1)
		nvcc(t.Context(), tr, "linux", []string{"PATH="}, 1)
		busID(string(data))
		if v := labelValue(string(data)); len(v) > 63 {
			t.Errorf("label value of %d characters", len(v))
		}
	})
}
