package cpu

import (
	"fmt"
	"math"
	"testing"

	"cotenant/internal/weights"
)

// product is x·wᵀ + bias in float64, w as ggml's definition of the format expands it.
func product(x []float32, rows int, parts []weights.Tensor, bias []float32) []float64 {
	cols := parts[0].Shape[1]
	var w []float32
	for _, p := range parts {
		v := make([]float32, p.Shape[0]*cols)
		weights.Dequantize(v, p.Type, p.Data)
		w = append(w, v...)
	}
	n := len(w) / cols
	out := make([]float64, rows*n)
	for i := range rows {
		for j := range n {
			var s float64
			for k := range cols {
				s += float64(x[i*cols+k]) * float64(w[j*cols+k])
			}
			if bias != nil {
				s += float64(bias[j])
			}
			out[i*n+j] = s
		}
	}
	return out
}

// TestMatMul checks every format and batch size against float64, and that a row's result is the same, bit for bit,
// whichever rows are beside it.
func TestMatMul(t *testing.T) {
	eachPath(t, func(t *testing.T, b *cpuBackend) {
		for _, dt := range allTypes {
			t.Run(dt.String(), func(t *testing.T) {
				r := random(uint64(dt))
				const cols = 512
				parts := []weights.Tensor{tensor(r, dt, 36, cols), tensor(r, dt, 7, cols)}
				m := must(b.Matrix(parts...))(t)
				const most = 65
				x := gaussian(r, most*cols)
				want := product(x, most, parts, nil)
				all := nans(t, b, most*m.Rows())
				b.MatMul(all, upload(t, b, x), most, m, nil, false)
				near(t, "65 rows", all.v, want, 2e-6)
				for _, rows := range rowCounts {
					at := most - rows // the last rows, so that a row's place in a tile changes too
					dst := nans(t, b, rows*m.Rows())
					b.MatMul(dst, upload(t, b, x[at*cols:]), rows, m, nil, false)
					same(t, fmt.Sprintf("%d rows", rows), dst.v, all.v[at*m.Rows():])
				}
			})
		}
	})
}

// TestMatMulBias checks bias and accumulation, at widths that are no multiple of a vector or a tile.
func TestMatMulBias(t *testing.T) {
	for _, shape := range [][2]int{{1, 1}, {3, 17}, {4, 8}, {33, 40}, {70, 96}, {5, 2080}, {70, 1032}} {
		n, cols := shape[0], shape[1]
		const most = 65
		r := random(uint64(cols * n))
		w := []weights.Tensor{tensor(r, weights.F32, n, cols)}
		x, bias, old := gaussian(r, most*cols), gaussian(r, n), gaussian(r, most*n)
		want := product(x, most, w, bias)
		for i, v := range old {
			want[i] += float64(v)
		}
		eachPath(t, func(t *testing.T, b *cpuBackend) {
			m, bv := must(b.Matrix(w...))(t), must(b.Vector(f32Tensor(bias)))(t)
			for _, rows := range rowCounts {
				dst := upload(t, b, old[:rows*n])
				b.MatMul(dst, upload(t, b, x[:rows*cols]), rows, m, bv, true)
				nearTop(t, fmt.Sprintf("%d×%d, %d rows", n, cols, rows), dst.v, want[:rows*n], 2e-6, math.Sqrt(float64(cols)))
			}
		})
	}
}

// TestExpand checks that every path expands weights to exactly the plain path's.
func TestExpand(t *testing.T) {
	for _, k := range fastKernels() {
		for _, dt := range allTypes {
			w := tensor(random(uint64(dt)+100), dt, 3, 1536)
			got, want := make([]float32, 3*1536), make([]float32, 3*1536)
			k.expand[dt](got, w.Data)
			weights.Dequantize(want, dt, w.Data)
			same(t, k.name+" "+dt.String(), got, want)
		}
	}
}

// TestMixedParts checks a matrix whose parts differ in format.
func TestMixedParts(t *testing.T) {
	eachPath(t, func(t *testing.T, b *cpuBackend) {
		r := random(9)
		parts := []weights.Tensor{tensor(r, weights.Q4_1, 40, 256), tensor(r, weights.Q6K, 6, 256), tensor(r, weights.F16, 8, 256)}
		m := must(b.Matrix(parts...))(t)
		for _, rows := range []int{1, 5} {
			x := gaussian(r, rows*256)
			dst := nans(t, b, rows*m.Rows())
			b.MatMul(dst, upload(t, b, x), rows, m, nil, false)
			near(t, fmt.Sprint(rows, " rows"), dst.v, product(x, rows, parts, nil), 2e-6)
		}
	})
}

// TestMatrixRefuses gives what cannot be a matrix.
func TestMatrixRefuses(t *testing.T) {
	b := open(t, plainKernels(), 1)
	good := tensor(random(1), weights.Q4_1, 2, 64)
	for name, change := range map[string]func(*weights.Tensor){
		"short data":    func(w *weights.Tensor) { w.Data = w.Data[1:] },
		"three axes":    func(w *weights.Tensor) { w.Shape = []int{1, 2, 64} },
		"half a block":  func(w *weights.Tensor) { w.Shape = []int{2, 63} },
		"no rows":       func(w *weights.Tensor) { w.Shape = []int{0, 64} },
		"negative":      func(w *weights.Tensor) { w.Shape = []int{-2, -64} },
		"huge":          func(w *weights.Tensor) { w.Shape = []int{1 << 62, 64} },
		"unknown type":  func(w *weights.Tensor) { w.Type = 200 },
		"another width": func(w *weights.Tensor) { *w = tensor(random(1), weights.Q4_1, 2, 32) },
	} {
		bad := good
		change(&bad)
		if _, err := b.Matrix(good, bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := b.Matrix(); err == nil {
		t.Error("no parts: accepted")
	}
}
