// Package internal holds the architecture test: which package may import which.
package internal

import (
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// levels is the map of docs/design.md: a package imports only packages of lower levels.
var levels = map[string]int{
	"chat": 0, "embedded": 0, "kvcache": 0, "loadgen": 0, "openai": 0, "scrape": 0, "stats": 0, "tokenizer": 0, "weights": 0,
	"testenv": 0, "bounded": 0, "dl": 0, "observe": 0, "topology": 0, "report/plot": 0,
	"backend": 1, "faultproxy": 1, "ledger": 1, "scheduler": 1, "server": 1, "weights/weightstest": 1,
	"cuda/query": 1, "mps/query": 1, "nvml": 1, "interfere/record": 1,
	"cuda": 2, "kernels": 2, "mps": 2,
	"backend/cpu": 2, "soak": 2, "verify": 2, "verify/fak": 2, "recover": 2, "gputest": 2,
	"backend/cuda": 3, "queue": 3, "model": 3, "inspect": 3, "partition": 3, "publish": 3, "compare": 3, "container": 3, "container/enginetest": 1, "probe/evidence": 4,
	"engine": 4, "report": 4, "probe": 5, "interfere": 6,
}

// unreachable lists packages that must not be reached, even through others, and why.
var unreachable = []struct{ from, to, why string }{
	{"soak", "engine", "soak judges any endpoint as a stranger would"},
	{"soak", "server", "soak judges any endpoint as a stranger would"},
	{"verify", "engine", "verify needs nothing but the evidence"},
	{"verify", "server", "verify needs nothing but the evidence"},
	{"report", "engine", "report needs nothing but the evidence"},
	{"report", "cuda", "report needs nothing but the evidence"},
	{"server", "engine", "server knows only its Generator interface"},
	{"inspect", "cuda", "inspect changes nothing: it reaches cuda/query only"},
	{"inspect", "mps", "inspect changes nothing: it reaches mps/query only"},
	{"inspect", "partition", "inspect changes nothing"},
	{"inspect", "kernels", "inspect changes nothing"},
	{"inspect", "probe", "inspect changes nothing"},
	{"inspect", "interfere", "inspect changes nothing"},
	{"inspect", "container", "inspect starts no container"},
	{"inspect", "engine", "inspect changes nothing"},
}

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func TestImportsGoDown(t *testing.T) {
	const prefix = "cotenant/internal/"
	pkgs := list(t)
	seen := 0
	for _, p := range pkgs {
		name, ok := strings.CutPrefix(p.ImportPath, prefix)
		if !ok {
			continue
		}
		level, ok := levels[name]
		if !ok {
			t.Errorf("%s is not in the level table: a new package is a decision, see docs/design.md", name)
			continue
		}
		seen++
		for _, imp := range p.Imports {
			dep, ok := strings.CutPrefix(imp, prefix)
			if ok && levels[dep] >= level {
				t.Errorf("%s (level %d) imports %s (level %d)", name, level, dep, levels[dep])
			}
		}
		for _, u := range unreachable {
			if u.from != name {
				continue
			}
			for _, d := range p.Deps {
				if d == prefix+u.to {
					t.Errorf("%s reaches %s: %s", u.from, u.to, u.why)
				}
			}
		}
	}
	if seen < len(levels) {
		t.Errorf("found %d of the table's %d packages", seen, len(levels))
	}
}

// TestOnlyDLImportsPurego keeps calls into C in one place, and the fakes out of the program.
func TestOnlyDLImportsPurego(t *testing.T) {
	const prefix = "cotenant/internal/"
	for _, p := range list(t) {
		for _, imp := range p.Imports {
			if imp == "github.com/ebitengine/purego" && p.ImportPath != prefix+"dl" {
				t.Errorf("%s imports purego: only dl may", p.ImportPath)
			}
			if imp == prefix+"gputest" || imp == prefix+"container/enginetest" {
				t.Errorf("%s imports %s, which is for tests only", p.ImportPath, imp)
			}
		}
	}
}

func list(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); err == io.EOF {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}
