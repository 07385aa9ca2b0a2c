package gputest

import "testing"

// The checker finds each way around the allow-list.
func TestReadOnlyViolations(t *testing.T) {
	for name, c := range map[string]struct {
		src  string
		want int
	}{
		"clean":           {`var callable = []string{"cuInit"}; func f(l *dl.Library, s dl.Symbol) { l.Resolve(callable)["cuInit"].Call(0); l.Has("x"); print(r.Init.Symbol) }`, 0},
		"symbol":          {`func f(l *dl.Library, name string) { l.Symbol(name).Call() }`, 1},
		"symbol value":    {`func f(l *dl.Library) { g := l.Symbol; g("x") }`, 1},
		"other list":      {`func f(l *dl.Library, names []string) { l.Resolve(names) }`, 1},
		"list literal":    {`func f(l *dl.Library) { l.Resolve([]string{"cuCtxCreate_v2"}) }`, 2},
		"resolve value":   {`func f(l *dl.Library) { g := l.Resolve; g(nil) }`, 1},
		"mutating name":   {`var x = "cuGreenCtxCreate"`, 1},
		"mutating nvml":   {`var x = "nvmlDeviceSetMigMode"`, 1},
		"mutating cudart": {`var x = "cudaGreenCtxCreate"`, 1},
	} {
		got := readOnlyViolations("x.go", "package x\n"+c.src, []string{"callable"}, []string{"cuInit"}, "symbols.go")
		if len(got) != c.want {
			t.Errorf("%s: %q, want %d", name, got, c.want)
		}
	}
	if got := readOnlyViolations("symbols.go", `package x; var presence = "cuGreenCtxCreate"`, nil, nil, "symbols.go"); len(got) != 0 {
		t.Errorf("presence: %q", got)
	}
}
