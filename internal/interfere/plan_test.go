package interfere

import (
	"os"
	"path/filepath"
	"testing"

	"cotenant/internal/interfere/record"
	"cotenant/internal/observe"
)

// plans are the plan files of the repository; none is a failure.
func plans(t testing.TB) [][]byte {
	t.Helper()
	var all [][]byte
	for _, pattern := range []string{"testdata/*.json", "../../bench/h200/interfere-*.json"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("no plan files at %s: %v", pattern, err)
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, content)
		}
	}
	return all
}

// FuzzPlan: a plan file is read or refused, and what is read fits together.
func FuzzPlan(f *testing.F) {
	for _, content := range plans(f) {
		if _, err := parsePlan(content); err != nil {
			f.Errorf("%v in %.60s", err, content)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		b, err := parsePlan(content)
		if err != nil {
			return
		}
		p, err := b.on(host{sms: 132, verdicts: anything{}}, "20260101T000000Z-0000000000000000", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range p.Cells {
			if c.Victim != "" && c.Aggressor != "" && c.Mechanism == record.Whole {
				t.Errorf("cell %s", c.ID)
			}
		}
	})
}

type refusing struct{}

func (refusing) of(mechanism string) (observe.Status, string) {
	return observe.Unsupported, mechanism + " isn't there"
}

// The built-in plans fit a GPU of any size, and a host that has nothing has what streams can do.
func TestBuiltInPlans(t *testing.T) {
	for _, b := range []base{quickPlan(), fullPlan()} {
		for _, sms := range []int64{1, 8, 16, 58, 132, 264} {
			p, err := b.on(host{sms: sms, verdicts: anything{}}, "20260101T000000Z-0000000000000000", 1)
			if err != nil {
				t.Fatalf("%s on %d SMs: %v", b.Name, sms, err)
			}
			for _, m := range p.Mechanisms {
				if m.Kind == record.Green && m.Planned() && sms > 1 && m.VictimSMs >= sms {
					t.Errorf("%s on %d SMs plans %s", b.Name, sms, m.ID)
				}
			}
		}
		p, err := b.on(host{sms: 132, verdicts: refusing{}}, "20260101T000000Z-0000000000000000", 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range p.Cells {
			switch c.Mechanism {
			case record.Whole, record.Sequential, record.Streams, record.Priority:
			default:
				t.Errorf("a cell of %s on a host without it", c.Mechanism)
			}
		}
	}
}
