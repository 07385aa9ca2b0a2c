package publish

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cotenant/internal/inspect"
)

// corpus is every host's report.
func corpus(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "inspect", "testdata", "hosts", "*.json"))
	if err != nil || len(files) < 40 {
		t.Fatalf("%d reports in the corpus, %v", len(files), err)
	}
	reports := make(map[string][]byte)
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		reports[strings.TrimSuffix(filepath.Base(f), ".json")] = data
	}
	return reports
}

// No published report of any host holds a UUID, and its verdicts are those of the original.
func TestEveryHost(t *testing.T) {
	anyUUID := regexp.MustCompile(`(?i)c0ff[0-9a-f]{2,}|[0-9a-f]{8}-[0-9a-f]{4}-`)
	for name, data := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			p, err := Report(data, Options{HostNames: []string{"node-7"}})
			if err != nil {
				t.Fatal(err)
			}
			if m := anyUUID.Find(p.Document); m != nil {
				t.Errorf("the document holds %q", m)
			}
			var before, after inspect.Report
			if err := json.Unmarshal(data, &before); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(p.Document, &after); err != nil {
				t.Fatal(err)
			}
			for i := range before.GPUs {
				for _, m := range inspect.Mechanisms() {
					b, a := before.GPUs[i].Mechanisms[m], after.GPUs[i].Mechanisms[m]
					if b.Status != a.Status {
						t.Errorf("%s: %s became %s", m, b.Status, a.Status)
					}
				}
			}
			twice, err := Report(p.Document, Options{})
			if err != nil || !bytes.Equal(twice.Document, p.Document) || len(twice.List.Replaced) > 0 {
				t.Errorf("publishing what is public changed it: %v %+v", err, twice)
			}
		})
	}
}

// What is kept under evidence/ is public already.
func TestEvidenceIsPublic(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "evidence", "inspect", "*", "*", "report.json"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%d reports, %v", len(files), err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Report(data, Options{})
		if err != nil || len(p.List.Replaced) > 0 || !bytes.Equal(p.Document, data) {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// The same report gives the same bytes and the same labels.
func TestStable(t *testing.T) {
	data := corpus(t)["h100-x8"]
	first, err := Report(data, Options{HostNames: []string{"node-7"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		again, err := Report(data, Options{HostNames: []string{"node-7"}})
		if err != nil || !bytes.Equal(first.Document, again.Document) || cmp.Diff(first.List, again.List) != "" {
			t.Fatalf("not the same twice: %v", err)
		}
	}
}

// private is a report with everything that must not come out, in every place where it can stand.
const private = `{
 "operation": "gpu_sharing_inspect", "schema_version": 1, "mutated_state": false,
 "gpus": [
  {"uuid": "GPU-BBBBBBBB-1111-2222-3333-444444444444", "mechanisms": {}, "mig": {"devices": [{"uuid": {"value": "MIG-cccccccc-1111-2222-3333-444444444444"}}], "profiles": []},
   "processes": {"value": [{"executable": {"value": "/home/alice/My Models/serve v2"}, "deleted": true, "kinds": ["compute"], "count": 1}]}},
  {"uuid": "GPU-aaaaaaaa-1111-2222-3333-444444444444", "mechanisms": {}, "mig": {"devices": [], "profiles": []}, "processes": {}}
 ],
 "findings": [
  {"id": "deleted_executable", "gpu": "GPU-bbbbbbbb-1111-2222-3333-444444444444", "text": "runs /home/alice/My Models/serve v2, deleted", "next": "look on gpu-box.example.org", "evidence": []},
  {"id": "x", "text": "the server at 10.1.2.3:8080, [fd00:abcd::12], 00:1a:2b:3c:4d:5e and https://alice:pw@gpu-box/x?k=1", "evidence": [{"call": "ps", "text": "GPU-aaaaaaaa-1111-2222 python3 /srv/team/run.sh"}]},
  {"id": "y", "text": "cut GPU-aaaa", "evidence": [{"call": "/home/bob/.local/lib/python3.12/site-packages", "text": "C:\\Users\\alice\\x.dll and /usr/lib/x86_64-linux-gnu/libcuda.so.1"}]}
 ],
 "host": {"kernel_release": "5.15.167.4-microsoft-standard-WSL2", "driver": {"nvml": {"value": "13.580.159.04"}}, "cuda": {}, "mps": {"folders": [{"path": "/scratch/job 7/mps"}]}, "environment": {"CUDA_VISIBLE_DEVICES": "GPU-aaaaaaaa-1111-2222-3333-444444444444,1", "LD_PRELOAD": "/opt/acme/libvgpu.so"}},
 "sources": {"kernel": {"evidence": [{"call": "/proc/version", "text": "Linux version 6.8.0 (buildd@lcy02-amd64-013) on gpu-box"}]}},
 "disagreements": [], "proves": [], "proves_not": [],
 "topology": {"host": "acme-primary", "roles": [{"host": "acme-primary", "role": "fast", "uuid": "GPU-bbbbbbbb-1111-2222-3333-444444444444", "state": "bound"}], "unassigned": ["GPU-dddddddd-1111-2222-3333-444444444444"], "foreign": []}
}`

func TestEverythingPrivate(t *testing.T) {
	p, err := Report([]byte(private), Options{HostNames: []string{"gpu-box.example.org", "gpu-box", "localhost", ""}})
	if err != nil {
		t.Fatal(err)
	}
	out := string(p.Document)
	for _, secret := range []string{"alice", "bob", "Models", "serve v2", "acme", "gpu-box", "example.org", "10.1.2.3", "fd00", "1a:2b", "pw@", "aaaa", "bbbb", "BBBB", "cccc", "dddd",
		"lcy02", "buildd", "team", "scratch", "job 7", "Users", ".dll"} {
		if strings.Contains(out, secret) {
			t.Errorf("%q stayed in %s", secret, out)
		}
	}
	for _, public := range []string{"5.15.167.4-microsoft-standard-WSL2", "13.580.159.04", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/proc/version", `"role": "fast"`, "python3", `"gpu": "GPU-1"`,
		`"host": "host-3"`, "look on host-1"} {
		if !strings.Contains(out, public) {
			t.Errorf("%q is missing in %s", public, out)
		}
	}
	kinds := make(map[string]int)
	for _, r := range p.List.Replaced {
		kinds[r.Kind]++
		if r.Count == 0 || len(r.Where) == 0 || !strings.HasPrefix(r.Where[0], "/") {
			t.Errorf("%+v", r)
		}
	}
	want := map[string]int{kindGPU: 3, kindMIG: 1, kindHost: 3, kindPath: 6, kindAddress: 5}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("%s\n%+v", diff, p.List.Replaced)
	}
	if p.List.Of != "gpu_sharing_inspect" || len(p.List.SHA256) != 64 {
		t.Errorf("%+v", p.List)
	}
	// The first GPU of the report is GPU-1, wherever its UUID came up first.
	if !strings.Contains(string(p.Document), "\"uuid\": \"GPU-1\"\n") || !strings.Contains(out, "GPU-2,1") {
		t.Errorf("labels: %s", out)
	}
}

// What only looks private is left alone.
func TestPublicTexts(t *testing.T) {
	r := newRedactor(Options{HostNames: []string{"box", "localhost", "GPU-1"}})
	for _, s := range []string{
		"GPU-accelerated work", "0000:06:00.0", "00000000:06:00.0", "n/a", "/", "GET /version", "::", "127.0.0.1", "0.0.0.0", "and/or", "GPU-1", "path-3", "address-1",
		"/proc/PID/exe", "/dev/nvidia0", "toolbox", "boxes", "release 13.1, V13.1.80", "13.580.159.04", "lspart (/tmp/nvidia-mps)", "1:2", "driver/library",
		"nvidia-smi --query-gpu=index,uuid --format=csv,noheader,nounits", "→ do x; then y",
	} {
		if got := r.text("/x", s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
	if got := r.text("/x", "a box, box"); got != "a host-1, host-1" {
		t.Errorf("got %q", got)
	}
	if got := r.text("/host/driver_version", "10.20.30.40"); got != "10.20.30.40" {
		t.Errorf("got %q", got)
	}
}

func TestRefusals(t *testing.T) {
	for name, data := range map[string]string{
		"empty":            "",
		"no JSON":          "GPU",
		"an array":         "[]",
		"null":             "null",
		"two documents":    `{"operation":"gpu_sharing_inspect","schema_version":1}{}`,
		"another document": `{"operation":"soak","schema_version":1}`,
		"another version":  `{"operation":"gpu_sharing_inspect","schema_version":2}`,
		"no version":       `{"operation":"gpu_sharing_inspect"}`,
	} {
		if _, err := Report([]byte(data), Options{}); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever the document, what comes out is published already: doing it again changes nothing.
func FuzzReport(f *testing.F) {
	f.Add([]byte(private))
	if len(corpus(f)) == 0 {
		f.Fatal("no corpus")
	}
	f.Add([]byte(`{"operation":"gpu_sharing_inspect","schema_version":1,"gpus":[{"uuid":"GPU-12345678"}],"topology":{"host":"host-9"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Report(data, Options{HostNames: []string{"gpu-box"}})
		if err != nil {
			return
		}
		again, err := Report(p.Document, Options{HostNames: []string{"gpu-box"}})
		if uuidForm.Match(p.Document) || err != nil || len(again.List.Replaced) > 0 {
			t.Errorf("%v %s", err, p.Document)
		}
	})
}
