package topology

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

const (
	fast  = "GPU-00000000-1111-2222-3333-444444444444"
	heavy = "GPU-aaaaaaaa-1111-2222-3333-444444444444"
	other = "GPU-dddddddd-1111-2222-3333-444444444444"
)

func good(t *testing.T) *Topology {
	t.Helper()
	topo, err := Read(filepath.Join("testdata", "good.toml"))
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

func TestRead(t *testing.T) {
	want := &Topology{SHA256: "f66de68f1f9fee56c0cba0d4380b475e1e9b91944eb0887f1c3e5a22c3fff862", Hosts: []Host{
		{Name: "lab-2", GPUs: []Role{
			{"slice", "MIG-bbbbbbbb-1111-2222-3333-444444444444", "", "hosts.lab-2.gpus[0]"},
			{"old-slice", "MIG-GPU-cccccccc-1111-2222-3333-444444444444/1/0", "", "hosts.lab-2.gpus[1]"},
		}},
		{Name: "primary", GPUs: []Role{{"fast", fast, "RTX 5090", "hosts.primary.gpus[0]"}, {"heavy", heavy, "", "hosts.primary.gpus[1]"}}},
	}}
	if diff := cmp.Diff(want, good(t)); diff != "" {
		t.Error(diff)
	}
}

func TestReadAbsentFile(t *testing.T) {
	if _, err := Read(filepath.Join("testdata", "none.toml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// gpu is a whole file with one GPU table of this content.
func gpu(fields string) string {
	return "schema_version = 1\n[[hosts.h.gpus]]\n" + fields
}

// Every refusal names the field's path.
func TestRefusals(t *testing.T) {
	role := "role = \"r\"\n"
	uuid := "uuid = \"" + fast + "\"\n"
	for _, tc := range []struct{ name, file, want string }{
		{"empty", "", "schema_version: missing"},
		{"syntax", "schema_version = 1\nhosts = [", "line 2: "},
		{"twice the same key", "schema_version = 1\nschema_version = 1\n", "line 2: "},
		{"not UTF-8", "schema_version = 1 # \xff\n", "not UTF-8"},
		{"too large", strings.Repeat("#", maxFile+1), "larger than"},
		{"version of another kind", "schema_version = \"1\"\n", "schema_version: want an integer"},
		{"later version", gpu(role+uuid) + "[later]\nx = 1\n", ""},
		{"version 2", "schema_version = 2\n[later]\n", "schema_version: version 2"},
		{"no host", "schema_version = 1\n", "hosts: no host"},
		{"hosts as a list", "schema_version = 1\n[[hosts]]\n", "hosts: want tables"},
		{"host as a string", "schema_version = 1\nhosts.h = \"x\"\n", "hosts.h: want a table"},
		{"host with a space", "schema_version = 1\n[[hosts.\"a b\".gpus]]\n" + role + uuid, "hosts.\"a b\": host name wants"},
		{"no GPU", "schema_version = 1\n[hosts.h]\n", "hosts.h.gpus: no GPU"},
		{"GPUs as a table", "schema_version = 1\n[hosts.h.gpus]\nrole = \"r\"\n", "hosts.h.gpus: want an array"},
		{"GPU as a string", "schema_version = 1\nhosts.h.gpus = [\"x\"]\n", "hosts.h.gpus[0]: want a table"},
		{"unknown field", gpu(role + uuid + "colour = \"red\"\n"), "hosts.h.gpus[0].colour: no such field; known here: role, uuid, model"},
		{"unknown field at the top", "schema_version = 1\nhost = 1\n", "host: no such field"},
		{"no role", gpu(uuid), "hosts.h.gpus[0].role: missing"},
		{"empty role", gpu("role = \" \"\n" + uuid), "hosts.h.gpus[0].role: empty"},
		{"role of another kind", gpu("role = 3\n" + uuid), "hosts.h.gpus[0].role: want a string"},
		{"role with a slash", gpu("role = \"a/b\"\n" + uuid), "hosts.h.gpus[0].role: role wants"},
		{"no UUID", gpu(role), "hosts.h.gpus[0].uuid: missing"},
		{"index for a UUID", gpu(role + "uuid = \"0\"\n"), "hosts.h.gpus[0].uuid: is an index"},
		{"prefix of a UUID", gpu(role + "uuid = \"GPU-00000000\"\n"), "hosts.h.gpus[0].uuid: malformed UUID"},
		{"placeholder", gpu(role + "uuid = \"GPU-REPLACE-WITH-YOUR-UUID\"\n"), "hosts.h.gpus[0].uuid: is a placeholder"},
		{"PCI id for a UUID", gpu(role + "uuid = \"0000:01:00.0\"\n"), "hosts.h.gpus[0].uuid: not a GPU's UUID"},
		{"UUID twice", gpu(role+uuid) + "[[hosts.i.gpus]]\n" + role + uuid, "hosts.i.gpus[0].uuid: duplicate: hosts.h.gpus[0] has the same UUID"},
		{"UUID twice in another case", gpu(role+uuid) + "[[hosts.h.gpus]]\nrole = \"s\"\nuuid = \"" + strings.ToUpper(fast) + "\"\n", "hosts.h.gpus[1].uuid: duplicate"},
		{"role twice", gpu(role+uuid) + "[[hosts.h.gpus]]\n" + role + "uuid = \"" + heavy + "\"\n", "hosts.h.gpus[1].role: \"r\" is already the role of hosts.h.gpus[0]"},
		{"secret field", gpu(role + uuid + "api-key = \"x\"\n"), "hosts.h.gpus[0].api-key: looks like a secret"},
		{"secret field at the top", "schema_version = 1\nhf_token = \"x\"\n", "hf_token: looks like a secret"},
		{"secret value", gpu(role + uuid + "model = \"hf_abcdefghijklmnopqrstuvwx\"\n"), "hosts.h.gpus[0].model: the value looks like a secret"},
		{"private key", gpu(role + uuid + "model = \"-----BEGIN PRIVATE KEY-----\"\n"), "hosts.h.gpus[0].model: the value looks like a secret"},
		{"runtime state", gpu(role + uuid + "index = 0\n"), "hosts.h.gpus[0].index: is runtime state"},
		{"runtime state of a host", "schema_version = 1\n[hosts.h]\ndriver_version = \"580\"\n", "hosts.h.driver_version: is runtime state"},
		{"observed block", gpu(role+uuid) + "[observed_gpus]\n", "observed_gpus: is runtime state"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse([]byte(tc.file))
			if tc.name == "later version" { // version 1 with an unknown table
				tc.want = "later: no such field"
			}
			var bad *Error
			if !errors.As(err, &bad) || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("got %v, want %s…", err, tc.want)
			}
		})
	}
}

// Roles follow the UUID, whatever order the driver lists GPUs in.
func TestBindFollowsUUID(t *testing.T) {
	topo := good(t)
	a := Observed{fast, "NVIDIA GeForce RTX 5090"}
	b := Observed{heavy, "NVIDIA RTX PRO 6000"}
	first, second := topo.Bind([]Observed{a, b}), topo.Bind([]Observed{b, a})
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the order of GPUs changed the binding: %s", diff)
	}
	want := Binding{Host: "primary", Unassigned: []string{}, Foreign: []BoundRole{},
		Roles: []BoundRole{{"primary", "fast", fast, Bound, ""}, {"primary", "heavy", heavy, Bound, ""}}}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Error(diff)
	}
}

func TestBindMismatches(t *testing.T) {
	topo := good(t)
	got := topo.Bind([]Observed{{fast, "NVIDIA L4"}, {other, "NVIDIA L4"}})
	want := Binding{Host: "primary", Unassigned: []string{other}, Foreign: []BoundRole{}, Roles: []BoundRole{
		{"primary", "fast", fast, Mismatched, "declared model RTX 5090, observed NVIDIA L4"},
		{"primary", "heavy", heavy, Absent, "no device with this UUID was observed"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	none := topo.Bind(nil)
	if none.Host != "" || none.Reason == "" || len(none.Roles) != 4 {
		t.Errorf("nothing observed: %+v", none)
	}
	slice := "MIG-bbbbbbbb-1111-2222-3333-444444444444"
	moved := topo.Bind([]Observed{{fast, "RTX 5090"}, {heavy, ""}, {slice, ""}})
	if moved.Host != "primary" || len(moved.Foreign) != 1 || moved.Foreign[0].Role != "slice" {
		t.Errorf("a role of another host: %+v", moved)
	}
	tie := topo.Bind([]Observed{{fast, "RTX 5090"}, {slice, ""}})
	if tie.Host != "" || !strings.Contains(tie.Reason, "equally many") {
		t.Errorf("a tie: %+v", tie)
	}
}

// Whatever the file, Parse returns a topology whose every role is whole, or an *Error.
func FuzzParse(f *testing.F) {
	seeds, err := filepath.Glob(filepath.Join("testdata", "*.toml"))
	if err != nil || len(seeds) == 0 {
		f.Fatalf("no corpus: %v", err)
	}
	for _, name := range seeds {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("schema_version = 1\n[[hosts.\"\\n\".gpus]]\nrole=\"\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		topo, err := Parse(data)
		if err != nil {
			var bad *Error
			if !errors.As(err, &bad) || !utf8.ValidString(err.Error()) {
				t.Fatalf("%T %q", err, err)
			}
			return
		}
		for _, h := range topo.Hosts {
			for _, r := range h.GPUs {
				if u, err := ParseUUID(r.UUID); err != nil || u != r.UUID || r.Name == "" {
					t.Fatalf("%+v: %v", r, err)
				}
			}
		}
	})
}
