//go:build linux

package probe

import (
	"strings"
	"testing"

	"cotenant/internal/gputest"
	"cotenant/internal/observe"
	"cotenant/internal/probe/evidence"
	"cotenant/internal/topology"
)

// testTopology gives one GPU the role fast on host primary, and another GPU the role slow.
func testTopology(t *testing.T, uuid string, more ...string) *topology.Topology {
	t.Helper()
	text := "schema_version = 1\n[[hosts.primary.gpus]]\nrole = \"fast\"\nuuid = \"" + uuid + "\"\n" + strings.Join(more, "\n") +
		"\n[[hosts.lab.gpus]]\nrole = \"slow\"\nuuid = \"GPU-99999999-2222-3333-4444-555555555555\"\n"
	topo, err := topology.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// The role's binding to the UUID is a gate, and evidence.
func TestTopology(t *testing.T) {
	for _, tc := range []struct {
		name, answer, detail string
		topo                 *topology.Topology
	}{
		{"bound", evidence.Yes, "role fast", testTopology(t, testUUID)},
		{"of another product", evidence.No, "mismatched: declared model RTX 5090", testTopology(t, testUUID, `model = "RTX 5090"`)},
		{"not here", evidence.No, "absent: no declared UUID was observed here", testTopology(t, "GPU-77777777-2222-3333-4444-555555555555")},
	} {
		m := gputest.Start(t, testHost())
		o := options(t, m)
		o.Topology = tc.topo
		out, _ := create(t, o)
		var g evidence.Gate
		for _, x := range out.Plan.Gates {
			if x.ID == "role_bound" {
				g = x
			}
		}
		if g.Answer != tc.answer || !strings.Contains(g.Detail, tc.detail) || out.Plan.Role == nil || out.Plan.Role.TopologySHA256 != tc.topo.SHA256 {
			t.Errorf("%s: %+v, role %+v", tc.name, g, out.Plan.Role)
		}
		if want := map[bool]int{true: ExitDone, false: ExitNo}[tc.answer == evidence.Yes]; out.Exit != want {
			t.Errorf("%s: exit %d, %s", tc.name, out.Exit, out.Why)
		}
		if r, err := evidence.Verify(out.Folder); err != nil || !r.Holds {
			t.Errorf("%s: %v %+v", tc.name, err, r)
		}
		p, code := Prerequisite(t.Context(), o.Common, 0)
		if (code == ExitDone) != (tc.answer == evidence.Yes) || p.Role == nil || (p.Status == observe.SupportedDeclared) != (tc.answer == evidence.Yes) {
			t.Errorf("%s: exit %d, %s", tc.name, code, dump(p))
		}
	}
}
