package weights_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"cotenant/internal/testenv"
	"cotenant/internal/weights"
	"cotenant/internal/weights/weightstest"
)

// oracle is testdata/quants.json: what Python's gguf package computes (tools/oracle/quants.py).
type oracle struct {
	Dequantize map[string]struct{ Blocks, Float32 []byte }
	Quantize   struct {
		Float32 []byte
		Formats map[string][]byte
	}
	F16   string
	Model map[string]string
}

var allTypes = []weights.DType{weights.F32, weights.F16, weights.BF16, weights.Q8_0, weights.Q4_0, weights.Q4_1,
	weights.Q5_0, weights.Q5_1, weights.Q4K, weights.Q5K, weights.Q6K}

func readOracle(t *testing.T) oracle {
	t.Helper()
	text, err := os.ReadFile("testdata/quants.json")
	if err != nil {
		t.Fatal(err)
	}
	var o oracle
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func floats(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func bits(x []float32) []byte {
	var b []byte
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func TestDequantizeEqualsOracle(t *testing.T) {
	o := readOracle(t)
	for _, dt := range allTypes[3:] {
		want, ok := o.Dequantize[dt.String()]
		if !ok || len(want.Float32) == 0 {
			t.Errorf("the oracle has no %s", dt)
			continue
		}
		got := make([]float32, len(want.Float32)/4)
		weights.Dequantize(got, dt, want.Blocks)
		for i, w := range floats(want.Float32) {
			if math.Float32bits(got[i]) != math.Float32bits(w) {
				t.Errorf("%s element %d is %v, want %v", dt, i, got[i], w)
				break
			}
		}
	}
}

func TestQuantizeEqualsOracle(t *testing.T) {
	o := readOracle(t)
	src := floats(o.Quantize.Float32)
	if len(o.Quantize.Formats) < 6 {
		t.Errorf("the oracle has %d formats", len(o.Quantize.Formats))
	}
	for _, dt := range allTypes {
		want, ok := o.Quantize.Formats[dt.String()]
		if !ok {
			continue
		}
		got := weightstest.Quantize(dt, src)
		if len(got) != len(want) {
			t.Errorf("%s: %d bytes, want %d", dt, len(got), len(want))
			continue
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("%s: block %d, byte %d is %#x, want %#x", dt, i/dt.BlockBytes(), i%dt.BlockBytes(), got[i], want[i])
				break
			}
		}
	}
}

// TestQuantizeIsClose checks that what is packed comes back within a step of the format, K formats included.
func TestQuantizeIsClose(t *testing.T) {
	step := map[weights.DType]float64{weights.F32: 0, weights.F16: 1.0 / 2048, weights.BF16: 1.0 / 256, weights.Q8_0: 1.0 / 220,
		weights.Q4_0: 1.0 / 7.9, weights.Q4_1: 1.0 / 14.5, weights.Q5_0: 1.0 / 15.8, weights.Q5_1: 1.0 / 30, weights.Q4K: 1.0 / 12,
		weights.Q5K: 1.0 / 22, weights.Q6K: 1.0 / 28}
	rng := rand.New(rand.NewPCG(1, 2))
	src := make([]float32, 512)
	for i := range src {
		src[i] = float32(rng.Float64()*2 - 1)
	}
	for _, dt := range allTypes {
		got := make([]float32, len(src))
		weights.Dequantize(got, dt, weightstest.Quantize(dt, src))
		for i := range src {
			if d := math.Abs(float64(got[i] - src[i])); d > step[dt] {
				t.Errorf("%s element %d: %v became %v", dt, i, src[i], got[i])
				break
			}
		}
	}
}

func TestHalf(t *testing.T) {
	var wide []float32
	for h := range 1 << 16 {
		f := weights.F16ToF32(uint16(h))
		if f != f {
			if uint16(h)&0x7fff <= 0x7c00 {
				t.Fatalf("%#x became NaN", h)
			}
			if back := weights.F32ToF16(f); back&0x7c00 != 0x7c00 || back&0x3ff == 0 || back&0x8000 != uint16(h)&0x8000 {
				t.Fatalf("NaN %#x came back as %#x", h, back)
			}
			continue
		}
		wide = append(wide, f)
		if back := weights.F32ToF16(f); back != uint16(h) {
			t.Fatalf("%#x is %v and came back as %#x", h, f, back)
		}
	}
	sum := sha256.Sum256(bits(wide))
	if got := hex.EncodeToString(sum[:]); got != readOracle(t).F16 {
		t.Errorf("binary16 values hash to %s", got)
	}
	// Between two neighbours the nearer one wins, and at the middle the even one; above the largest, infinity.
	for h := uint16(0); h < 0x7bff; h++ {
		a, b := weights.F16ToF32(h), weights.F16ToF32(h+1)
		mid := a + (b-a)/2
		even := h + h&1
		for _, c := range []struct {
			f    float32
			want uint16
		}{{mid, even}, {math.Nextafter32(mid, a), h}, {math.Nextafter32(mid, b), h + 1}, {-mid, even | 0x8000}} {
			if got := weights.F32ToF16(c.f); got != c.want {
				t.Fatalf("F32ToF16(%v) = %#x, want %#x", c.f, got, c.want)
			}
		}
	}
	for f, want := range map[float32]uint16{65519.996: 0x7bff, 65520: 0x7c00, 1e10: 0x7c00, -1e10: 0xfc00,
		float32(math.Inf(1)): 0x7c00, 1e-10: 0, math.SmallestNonzeroFloat32: 0} {
		if got := weights.F32ToF16(f); got != want {
			t.Errorf("F32ToF16(%v) = %#x, want %#x", f, got, want)
		}
	}
}

func TestBF16(t *testing.T) {
	for h := range 1 << 16 {
		f := weights.BF16ToF32(uint16(h))
		want := uint16(h)
		if f != f {
			want |= 0x40
		}
		if got := weights.F32ToBF16(f); got != want {
			t.Fatalf("%#x is %v and came back as %#x", h, f, got)
		}
	}
	for f, want := range map[float32]uint16{1 + 1.0/256: 0x3f80, 1 + 3.0/256: 0x3f82, math.MaxFloat32: 0x7f80} {
		if got := weights.F32ToBF16(f); got != want {
			t.Errorf("F32ToBF16(%v) = %#x, want %#x", f, got, want)
		}
	}
}

func TestDequantizeRefusesOtherLengths(t *testing.T) {
	for _, c := range []struct {
		dst int
		dt  weights.DType
		src int
	}{{32, weights.Q8_0, 33}, {32, weights.Q8_0, 68}, {31, weights.Q4_0, 18}, {1, weights.F32, 0}, {256, weights.Q6K, 209}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d elements of %s from %d bytes were accepted", c.dst, c.dt, c.src)
				}
			}()
			weights.Dequantize(make([]float32, c.dst), c.dt, make([]byte, c.src))
		}()
	}
}

// TestModelEqualsOracle compares whole tensors of the real model.
func TestModelEqualsOracle(t *testing.T) {
	f, err := weights.Open(testenv.Model(t, "SmolLM2-135M-Instruct.Q4_1.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	want := readOracle(t).Model
	if len(want) < 4 {
		t.Fatalf("the oracle has %d tensors", len(want))
	}
	for name, sum := range want {
		x, ok := f.Tensor(name)
		if !ok {
			t.Errorf("no tensor %s", name)
			continue
		}
		h := sha256.New()
		cols := x.Shape[len(x.Shape)-1]
		row := make([]float32, cols)
		for data, n := x.Data, x.Type.RowBytes(cols); len(data) > 0; data = data[n:] {
			weights.Dequantize(row, x.Type, data[:n])
			h.Write(bits(row))
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != sum {
			t.Errorf("%s hashes to %s, want %s", name, got, sum)
		}
	}
}

// TestFloatsAreExact covers the formats that the oracle's tables leave out.
func TestFloatsAreExact(t *testing.T) {
	src := []float32{0, -0.5, 1, 3.5, -65504, float32(math.Copysign(0, -1))}
	for _, dt := range allTypes[:3] {
		want := src
		if dt == weights.BF16 {
			want = []float32{0, -0.5, 1, 3.5, -65536, float32(math.Copysign(0, -1))}
		}
		got := make([]float32, len(src))
		weights.Dequantize(got, dt, weightstest.Quantize(dt, src))
		if !bytes.Equal(bits(got), bits(want)) {
			t.Errorf("%s: %v, want %v", dt, got, want)
		}
	}
}
