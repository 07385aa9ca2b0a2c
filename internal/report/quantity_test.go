package report

import (
	"testing"
)

func TestQuantity(t *testing.T) {
	for _, c := range []struct {
		n    int64
		unit string
		want string
	}{
		{0, unitUS, "0 s"}, {7, unitUS, "7 µs"}, {999, unitUS, "999 µs"}, {1000, unitUS, "1.00 ms"}, {54_712, unitUS, "54.7 ms"}, {999_949, unitUS, "1,000 ms"},
		{5_471_234, unitUS, "5.47 s"}, {5_471_234, unitUSUp, "5.48 s"}, {599_000_000, unitUS, "599 s"}, {754_000_000, unitUS, "12 min 34 s"}, {-1500, unitUS, "−1.50 ms"},
		{40_000_000_000, unitUS, "11 h 06 min"}, {850, unitNS, "850 ns"}, {1_234, unitNS, "1.23 µs"}, {1_231, unitNSUp, "1.24 µs"}, {1_239, "ns_down", "1.23 µs"}, {-1_231, "ns_down", "−1.24 µs"}, {-1_239, unitNSUp, "−1.23 µs"},
		{0, unitBytes, "0 B"}, {1023, unitBytes, "1,023 B"}, {16_778_917, unitBytes, "16.0 MiB"}, {940_000, unitPPM, "94.0 %"}, {1_000_000, unitPPM, "100 %"}, {12, unitPPM, "0.00120 %"},
		{4_253_703_766, unitPerE6, "4,254"}, {29_521_581, unitPerE6, "29.5"}, {1_234_567, unitCount, "1,234,567"}, {-3, unitCount, "−3"},
		{700_123, unitMW, "700 W"}, {567_000, unitMJ, "567 J"}, {1_567_000, unitMJ, "1.57 kJ"}, {1_500_000, unitRatio, "1.50×"},
		{1_796_000_000_000_000, unitWall, "2026-11-30 00:53:20 UTC"},
	} {
		got, err := quantity(c.n, c.unit)
		if err != nil || got != c.want {
			t.Errorf("%d in %s is %q (%v), want %q", c.n, c.unit, got, err, c.want)
		}
	}
}
