package kernels

import (
	"slices"
	"testing"

	"cotenant/internal/weights"
)

// Every plan for quantised weights names a kernel that there is, covers all of c, and stays within what a grid can be; many rows, and
// Hopper's prompts, are left to the expanded weights.
func TestQuantizedPlans(t *testing.T) {
	for _, g := range []GPU{{80, 108}, {89, 58}, {90, 132}, {120, 170}} {
		for _, f := range quantizedTypes {
			module, suffix := QuantizedModule(g, f)
			_, info, err := Module(module)
			if err != nil {
				t.Fatal(err)
			}
			for _, kind := range []string{"repack_", "expand_", "embed_"} {
				if !slices.Contains(info.Kernels, kind+suffix) {
					t.Errorf("%s has no kernel %s%s", module, kind, suffix)
				}
			}
			for _, M := range []int{1, 8, 9, 16, 17, 32, 33, 64, 65, 256} {
				for _, s := range [][2]int{{8, 256}, {152, 768}, {151936, 896}, {28672, 4096}, {4096, 14336}} {
					for _, order := range []Order{Sliced, Ordered} {
						p, ok := QuantizedProduct(g, f, order, M, s[0], s[1])
						if want := M <= 32 && (order == Sliced || g.Capability != 90); ok != want {
							t.Fatalf("%v, order %d, %d rows: from quantised weights %v", g, order, M, ok)
						}
						if !ok {
							p = QuantizedAll(g, f, M, s[0], s[1])
						}
						rows, tiles := ceil(M, int(p.Grid[1])), 8/Slices(s[1])
						if M > 16 {
							tiles *= 2
						}
						if p.Module != module || !slices.Contains(info.Kernels, p.Kernel) || rows > 32 || int(p.Grid[0])*tiles*16 < s[0] || p.Grid[1] > 65535 {
							t.Fatalf("%v %v %d×%v: %+v", g, f, M, s, p)
						}
					}
				}
			}
		}
	}
}

// What can't stay quantised is said so.
func TestQuantizedBytes(t *testing.T) {
	for _, c := range []struct {
		t          weights.DType
		rows, cols int
		want       int64
	}{
		{weights.Q8_0, 8, 64, 8 * 68}, {weights.Q8_0, 8, 96, 8 * 136}, {weights.Q4_0, 16, 128, 16 * 72}, {weights.Q4_1, 8, 64, 8 * 40}, {weights.Q5_0, 8, 64, 8 * 44},
		{weights.Q5_1, 8, 64, 8 * 48}, {weights.Q4K, 8, 512, 8 * 296}, {weights.Q5K, 8, 256, 8 * 180}, {weights.Q6K, 8, 256, 8 * 210},
		{weights.Q8_0, 12, 64, -1}, {weights.Q8_0, 8, 40, -1}, {weights.Q4K, 8, 896, -1}, {weights.BF16, 8, 64, -1}, {weights.F32, 8, 64, -1}, {weights.Q4_0, 0, 64, -1}, {weights.Q4_0, 8, 0, -1},
	} {
		if got, ok := QuantizedBytes(c.t, c.rows, c.cols); ok != (c.want >= 0) || ok && got != c.want {
			t.Errorf("%v %d × %d: %d bytes, %v", c.t, c.rows, c.cols, got, ok)
		}
	}
}
