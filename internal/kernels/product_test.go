package kernels

import (
	"regexp"
	"slices"
	"testing"
)

// plansOf returns every plan that could be made for a shape, not only the one that Product chooses.
func plansOf(g GPU, order Order, M, N, K int, mode Mode) []Plan {
	plans := []Plan{Product(g, order, M, N, K, mode)}
	if !g.Hopper() {
		return plans
	}
	for _, c := range candidates(g, order, M, N, K, mode) {
		plans = append(plans, c.plan)
	}
	return plans
}

// Every plan names a kernel that there is, and fits what the hardware allows.
func TestProductPlans(t *testing.T) {
	m, err := ReadManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []GPU{{80, 108}, {89, 58}, {90, 132}, {90, 16}, {100, 148}, {120, 170}} {
		for _, order := range []Order{Sliced, Ordered} {
			for _, M := range []int{1, 7, 8, 9, 16, 17, 64, 65, 128, 129, 704, 8192, 100000} {
				for _, s := range [][2]int{{8, 8}, {16, 8}, {1152, 896}, {9728, 896}, {896, 4864}, {151936, 896}, {28672, 4096}, {4096, 14336}} {
					for _, p := range plansOf(g, order, M, s[0], s[1], StoreBF16) {
						i := slices.IndexFunc(m.Modules, func(i ModuleInfo) bool { return i.Name == p.Module })
						if i < 0 || !slices.Contains(m.Modules[i].Kernels, p.Kernel) {
							t.Fatalf("%v %d×%v: no kernel %s in %s", g, M, s, p.Kernel, p.Module)
						}
						limit := uint32(227 << 10)
						if g.Capability == 89 || g.Capability == 120 {
							limit = 99 << 10
						}
						if p.Shared > limit || p.Block[0] > 1024 || p.Grid[0] == 0 || p.Grid[1] == 0 || p.Grid[1] > 65535 || p.Cluster > 8 ||
							p.Cluster > 0 && p.Grid[0]%p.Cluster != 0 || p.Maps != regexp.MustCompile(`^(ordered|sliced|cluster)_`).MatchString(p.Kernel) || p.BoxRows > 256 {
							t.Fatalf("%v %d×%v: %+v", g, M, s, p)
						}
						if p.Maps && !g.Hopper() {
							t.Fatalf("%v: %+v", g, p)
						}
					}
				}
			}
		}
	}
}
