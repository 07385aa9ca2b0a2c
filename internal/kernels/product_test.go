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

// How a norm is summed up is a matter of the row's width alone, and a norm within a product has a kernel wherever it is possible.
func TestNormPlans(t *testing.T) {
	m, err := ReadManifest()
	if err != nil {
		t.Fatal(err)
	}
	exists := func(p Plan) bool {
		i := slices.IndexFunc(m.Modules, func(i ModuleInfo) bool { return i.Name == p.Module })
		return i >= 0 && slices.Contains(m.Modules[i].Kernels, p.Kernel)
	}
	for _, g := range []GPU{{80, 108}, {90, 132}, {120, 170}} {
		for _, width := range []int{8, 50, 896, 1024, 1032, 4096, 5120, 8192, 8200} {
			for _, rows := range []int{1, 8, 133, 4096} {
				if p := Norm(g, rows, width); !exists(p) || p.Kernel != Norm(g, 1, width).Kernel || int(p.Grid[0]) != rows {
					t.Errorf("%v: %d rows of %d: %+v", g, rows, width, p)
				}
			}
		}
		for _, c := range []struct {
			M, K int
			want bool
		}{{1, 896, true}, {8, 896, true}, {9, 896, false}, {8, 1032, false}, {4, 1032, true}, {2, 4096, true}, {3, 4096, false}, {1, 8192, true}, {2, 8192, false}, {1, 8200, false}} {
			p, better := ProductNorm(g, c.M, 1152, c.K, StoreBF16)
			if (p.Kernel != "") != c.want || c.want && (!exists(p) || p.Shared > 99<<10) || better && !c.want {
				t.Errorf("%v: %d rows of %d: %+v, %v", g, c.M, c.K, p, better)
			}
		}
	}
}
