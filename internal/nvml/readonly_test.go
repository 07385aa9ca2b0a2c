package nvml

import (
	"regexp"
	"testing"

	"cotenant/internal/gputest"
)

// TestOnlyReadersAreCallable: the allow-list holds functions that read, and nothing else can be called.
func TestOnlyReadersAreCallable(t *testing.T) {
	reader := regexp.MustCompile(`^(nvmlInit(_v2|WithFlags)|nvmlShutdown|nvml(System|Device)Get\w+)$`)
	refused := regexp.MustCompile(`(Set|Create|Destroy|Reset|Clear|Register|Validate|Modify)[A-Z]`)
	for _, name := range callable {
		if !reader.MatchString(name) || refused.MatchString(name) {
			t.Errorf("%s may be called", name)
		}
	}
	gputest.CheckReadOnly(t, []string{"callable"}, callable, "symbols.go")
}

func TestReturns(t *testing.T) {
	for code, want := range map[Return]string{0: "NVML_SUCCESS (0)", 18: "NVML_ERROR_LIB_RM_VERSION_MISMATCH (18)", 999: "NVML_ERROR_UNKNOWN (999)", 77: "nvmlReturn_t 77 (77)"} {
		if got := code.Error(); got != want {
			t.Errorf("%d: %s", int(code), got)
		}
	}
}

func TestNames(t *testing.T) {
	for bit, want := range map[int]string{0: "gpu_idle", 10: "reliability", 11: "bit 11", 63: "bit 63"} {
		if got := throttleName(bit); got != want {
			t.Errorf("%d: %s", bit, got)
		}
	}
	if got := nameOf(15, architectures) + nameOf(14, architectures) + nameOf(1<<32-1, computeModes); got != "npu3unknown (14)unknown (4294967295)" {
		t.Error(got)
	}
}
