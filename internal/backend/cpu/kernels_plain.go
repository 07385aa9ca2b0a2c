package cpu

import "math"

// dot4Plain takes two rows of x at a time: eight sums hide the latency of an addition, and each loaded weight is used twice.
func dot4Plain(dst []float32, ldd int, x []float32, rows, cols int, w, bias []float32, add bool) {
	w0, w1, w2, w3 := w[:cols], w[cols:2*cols], w[2*cols:3*cols], w[3*cols:4*cols]
	i := 0
	for ; i+2 <= rows; i += 2 {
		x0, x1 := x[i*cols:(i+1)*cols], x[(i+1)*cols:(i+2)*cols]
		var a, b [4]float32
		a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3] = dot2x4(x0, x1, w0, w1, w2, w3)
		finish4(dst[i*ldd:i*ldd+4], &a, bias, add)
		finish4(dst[(i+1)*ldd:(i+1)*ldd+4], &b, bias, add)
	}
	if i < rows {
		x0 := x[i*cols : (i+1)*cols]
		var a [4]float32
		a[0], a[1], a[2], a[3] = dot1x4(x0, w0, w1, w2, w3)
		finish4(dst[i*ldd:i*ldd+4], &a, bias, add)
	}
}

func finish4(dst []float32, sum *[4]float32, bias []float32, add bool) {
	for j, v := range sum {
		v += bias[j]
		if add {
			v += dst[j]
		}
		dst[j] = v
	}
}

func dot2x4(x0, x1, w0, w1, w2, w3 []float32) (a0, a1, a2, a3, b0, b1, b2, b3 float32) {
	n := len(x0)
	x1, w0, w1, w2, w3 = x1[:n], w0[:n], w1[:n], w2[:n], w3[:n]
	for k, x := range x0 {
		y := x1[k]
		w := w0[k]
		a0 += x * w
		b0 += y * w
		w = w1[k]
		a1 += x * w
		b1 += y * w
		w = w2[k]
		a2 += x * w
		b2 += y * w
		w = w3[k]
		a3 += x * w
		b3 += y * w
	}
	return
}

func dot1x4(x0, w0, w1, w2, w3 []float32) (a0, a1, a2, a3 float32) {
	n := len(x0)
	w0, w1, w2, w3 = w0[:n], w1[:n], w2[:n], w3[:n]
	for k, x := range x0 {
		a0 += x * w0[k]
		a1 += x * w1[k]
		a2 += x * w2[k]
		a3 += x * w3[k]
	}
	return
}

func tilePlain(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int, add bool) {
	for i := range m {
		ci := c[i*ldc : i*ldc+n]
		if !add {
			clear(ci)
		}
		for l, v := range a[i*lda : i*lda+k] {
			axpy(ci, b[l*ldb:l*ldb+n], v)
		}
	}
}

func axpy(y, x []float32, a float32) {
	x = x[:len(y)]
	for len(y) >= 4 {
		y[0] += a * x[0]
		y[1] += a * x[1]
		y[2] += a * x[2]
		y[3] += a * x[3]
		y, x = y[4:], x[4:]
	}
	for i := range y {
		y[i] += a * x[i]
	}
}

func softmaxPlain(s []float32, scale float32) (top, sum float32) {
	top = float32(math.Inf(-1))
	for i, v := range s {
		v *= scale
		s[i] = v
		if v > top {
			top = v
		}
	}
	for i, v := range s {
		e := exp(v - top) // NaN stays NaN, and makes sum NaN
		s[i] = e
		sum += e
	}
	return top, sum
}

func swigluPlain(dst, gate, up []float32) {
	dst, up = dst[:len(gate)], up[:len(gate)]
	for i, g := range gate {
		dst[i] = g / (1 + exp(-g)) * up[i]
	}
}

func blendPlain(y, x []float32, f, g float32) {
	x = x[:len(y)]
	for i, v := range x {
		y[i] = y[i]*f + v*g
	}
}

func rotatePlain(x, cos, sin []float32, interleaved bool) {
	n := len(cos)
	sin = sin[:n]
	if interleaved {
		x = x[:2*n]
		for i, c := range cos {
			s, u, v := sin[i], x[2*i], x[2*i+1]
			x[2*i] = u*c - v*s
			x[2*i+1] = u*s + v*c
		}
		return
	}
	lo, hi := x[:n], x[n:2*n]
	for i, c := range cos {
		s, u, v := sin[i], lo[i], hi[i]
		lo[i] = u*c - v*s
		hi[i] = u*s + v*c
	}
}

func normPlain(dst, x, w []float32, eps float32) {
	dst, w = dst[:len(x)], w[:len(x)]
	var s [4]float32
	i := 0
	for ; i+4 <= len(x); i += 4 {
		v := x[i : i+4 : i+4]
		s[0] += v[0] * v[0]
		s[1] += v[1] * v[1]
		s[2] += v[2] * v[2]
		s[3] += v[3] * v[3]
	}
	for ; i < len(x); i++ {
		s[0] += x[i] * x[i]
	}
	mean := (s[0] + s[1] + s[2] + s[3]) / float32(len(x))
	r := float32(1 / math.Sqrt(float64(mean+eps)))
	for i, v := range x {
		dst[i] = v * r * w[i]
	}
}

// Constants of exp. ln2 is split so that n*expLn2Hi is exact for |n| < 2^8; the polynomial is the Taylor series, whose
// error at |r| <= ln(2)/2 is below a float32's rounding.
const (
	expMin   = -87.33654 // below, 2^-126 is returned: no subnormals
	expMax   = 88.37626  // above, exp(expMax) is returned
	expLog2e = 1.44269504088896341
	expLn2Hi = 0.693359375
	expLn2Lo = -2.12194440e-4
)

// exp returns e^x with a relative error below 2e-7 for expMin <= x <= expMax, the value at the nearer end outside, and
// NaN for NaN.
func exp(x float32) float32 {
	if x < expMin {
		x = expMin
	} else if x > expMax {
		x = expMax
	} else if x != x {
		return x
	}
	const round = 3 << 22 // adding it leaves the nearest integer in the low bits
	t := x*expLog2e + round
	n := t - round
	r := x - n*expLn2Hi - n*expLn2Lo
	p := float32(1.0 / 5040)
	p = p*r + 1.0/720
	p = p*r + 1.0/120
	p = p*r + 1.0/24
	p = p*r + 1.0/6
	p = p*r + 0.5
	p = p*r + 1
	p = p*r + 1
	return math.Float32frombits(math.Float32bits(p) + uint32(int32(n))<<23)
}
