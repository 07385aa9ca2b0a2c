package cpu

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"

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
// whichever rows are beside it, and however many: save that tiles and vectors differ by rounding.
func TestMatMul(t *testing.T) {
	const cols, most = 512, 65
	for _, dt := range allTypes {
		r := random(uint64(dt))
		parts := []weights.Tensor{tensor(r, dt, 132, cols), tensor(r, dt, 7, cols)}
		x := gaussian(r, most*cols)
		want := product(x, most, parts, nil)
		eachPath(t, func(t *testing.T, b *cpuBackend) {
			m := must(b.Matrix(parts...))(t)
			run := func(first, rows int) []float32 {
				dst := nans(t, b, rows*m.Rows())
				b.MatMul(dst, upload(t, b, x[first*cols:(first+rows)*cols]), rows, m, nil, false)
				near(t, fmt.Sprint(dt, " ", rows, " rows"), dst.v, want[first*m.Rows():(first+rows)*m.Rows()], 2e-6)
				return dst.v
			}
			tiles := b.k.tiles != nil && b.k.tiles.product[dt] != nil
			all := run(0, most)
			for _, rows := range rowCounts {
				at := most - rows // the last rows, so that a row's place in a tile changes too
				got := run(at, rows)
				if !tiles || rows >= tilesFrom {
					same(t, fmt.Sprint(dt, " ", rows, " of 65 rows"), got, all[at*m.Rows():])
				} else {
					for i := range rows {
						same(t, fmt.Sprint(dt, " ", rows, " rows alone"), got[i*m.Rows():(i+1)*m.Rows()], run(at+i, 1))
					}
				}
			}
		})
	}
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
		"huge":          func(w *weights.Tensor) { w.Shape = []int{math.MaxInt / 2, 64} },
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

// TestTiles checks the tile unit where a matrix is one block wide, a segment and a bit, and x is over one block of rows.
func TestTiles(t *testing.T) {
	all := paths(t)
	k := all[len(all)-1]
	if k.tiles == nil {
		t.Logf("this processor has no tile unit: %s", k.name)
		return
	}
	b := open(t, k, 3)
	for _, dt := range []weights.DType{weights.Q4_0, weights.Q4_1, weights.Q8_0} {
		for _, cols := range []int{32, 128, 160, 800} {
			r := random(uint64(cols))
			parts := []weights.Tensor{tensor(r, dt, 80, cols), tensor(r, dt, 19, cols), tensor(r, weights.Q5_1, 9, cols)}
			m := must(b.Matrix(parts...))(t)
			const most = 270
			n := m.Rows()
			x, old, bias := gaussian(r, most*cols), gaussian(r, most*n), gaussian(r, n)
			bv := must(b.Vector(f32Tensor(bias)))(t)
			want := product(x, most, parts, bias)
			for i, v := range old {
				want[i] += float64(v)
			}
			run := func(first, rows int) []float32 {
				dst := upload(t, b, old[first*n:(first+rows)*n])
				b.MatMul(dst, upload(t, b, x[first*cols:(first+rows)*cols]), rows, m, bv, true)
				return dst.v
			}
			whole := run(0, most)
			near(t, fmt.Sprint(dt, " ", cols), whole, want, 2e-6)
			for _, rows := range []int{9, 15, 16, 17, 47, 255, 256, 257} {
				at := most - rows
				same(t, fmt.Sprint(dt, " ", cols, " ", rows, " rows"), run(at, rows), whole[at*n:])
			}
		}
	}
}

// TestTilesUnderSignals multiplies while the collector stops the world over and over: signals and switches of threads must
// leave the tiles alone.
func TestTilesUnderSignals(t *testing.T) {
	eachPath(t, func(t *testing.T, b *cpuBackend) {
		m := must(b.Matrix(tensor(random(1), weights.Q4_1, 512, 512)))(t)
		x := upload(t, b, gaussian(random(2), 64*512))
		want := nans(t, b, 64*512)
		b.MatMul(want, x, 64, m, nil, false)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					runtime.GC()
				}
			}
		})
		for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
			dst := nans(t, b, 64*512)
			b.MatMul(dst, x, 64, m, nil, false)
			same(t, "while signals come", dst.v, want.v)
		}
		close(stop)
		wg.Wait()
	})
}

// TestTilesNaN checks that what is no number in a row of x stays so, and stays in its row.
func TestTilesNaN(t *testing.T) {
	eachPath(t, func(t *testing.T, b *cpuBackend) {
		m := must(b.Matrix(tensor(random(1), weights.Q4_1, 64, 128)))(t)
		x := gaussian(random(2), 20*128)
		nan, inf := float32(math.NaN()), float32(math.Inf(1))
		x[3*128+5], x[7*128+90], x[11*128] = nan, math.Float32frombits(0x7f800001), inf // a NaN in its last bit alone, too
		dst := nans(t, b, 20*64)
		b.MatMul(dst, upload(t, b, x), 20, m, nil, false)
		for i := range 20 {
			bad := false
			for _, v := range dst.v[i*64 : (i+1)*64] {
				bad = bad || v != v || math.IsInf(float64(v), 0)
			}
			if want := i == 3 || i == 7 || i == 11; bad != want {
				t.Errorf("row %d is not finite: %v, want %v", i, bad, want)
			}
		}
	})
}
