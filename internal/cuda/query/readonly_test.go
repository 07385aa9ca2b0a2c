package query

import (
	"regexp"
	"slices"
	"testing"

	"cotenant/internal/gputest"
)

// TestOnlyReadersAreCallable: the allow-lists hold functions that read, and nothing else can be called.
func TestOnlyReadersAreCallable(t *testing.T) {
	reader := regexp.MustCompile(`^(cuInit|cuDriverGetVersion|cuDeviceGet\w*|cuDeviceTotalMem_v2|cudaRuntimeGetVersion)$`)
	// Getters by name that make a context, a handle or a pool all the same would have to be listed here to be refused.
	refused := regexp.MustCompile(`(?i)(create|destroy|retain|release|reset|set[A-Z]|alloc|free|launch|pool|default)`)
	for _, list := range [][]string{callable, runtimeCallable} {
		for _, name := range list {
			if !reader.MatchString(name) || refused.MatchString(name) {
				t.Errorf("%s may be called", name)
			}
		}
	}
	gputest.CheckReadOnly(t, []string{"callable", "runtimeCallable"}, slices.Concat(callable, runtimeCallable), "symbols.go")
}

func TestCodes(t *testing.T) {
	for code, want := range map[Code]string{0: "CUDA_SUCCESS (0)", 801: "CUDA_ERROR_NOT_SUPPORTED (801)", 915: "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION (915)",
		917: "CUDA_ERROR_STREAM_DETACHED (917)", 805: "CUDA_ERROR_MPS_CONNECTION_FAILED (805)", 12345: "CUresult 12345 (12345)", -1: "CUresult -1 (-1)"} {
		if got := code.Error(); got != want {
			t.Errorf("%d: %s", int(code), got)
		}
	}
	if len(names) < 100 {
		t.Errorf("%d codes", len(names))
	}
	seen := make(map[string]Code)
	for code, name := range names {
		if other, twice := seen[name]; twice {
			t.Errorf("%s is both %d and %d", name, code, other)
		}
		seen[name] = code
	}
}

func TestFormatVersion(t *testing.T) {
	for v, want := range map[int]string{12040: "12.4", 13000: "13.0", 13010: "13.1", 11080: "11.8", 0: "0.0"} {
		if got := FormatVersion(v); got != want {
			t.Errorf("%d: %s", v, got)
		}
	}
}

// The resource that an H200 with driver 580 returned, byte for byte from offset 96.
func TestDecodeSM(t *testing.T) {
	var r resource
	r[0] = 1
	r[12] = 132 | 8<<32 // offsets 96 and 100
	r[13] = 8
	sm := decodeSM(&r, 13000)
	if r.kind() != typeSM || sm.Count != 132 || sm.MinPartition.Or(0) != 8 || sm.Alignment.Or(0) != 8 || sm.Flags.OK() {
		t.Errorf("%+v", sm)
	}
	if len(sm.Raw) != 96 || sm.Raw[:24] != "840000000800000008000000" {
		t.Errorf("raw %s", sm.Raw)
	}
	if sm := decodeSM(&r, 12080); sm.MinPartition.OK() || sm.Alignment.OK() || sm.Count != 132 {
		t.Errorf("before 13.0: %+v", sm)
	}
}
