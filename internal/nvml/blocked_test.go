//go:build !linux || !(amd64 || arm64) || nocuda

package nvml_test

import (
	"context"
	"testing"

	"cotenant/internal/nvml"
	"cotenant/internal/observe"
)

// Where no library can be opened nothing is run and the report says why.
func TestBlocked(t *testing.T) {
	if r := nvml.Inspect(context.Background(), nvml.Options{}); r.Status != observe.BlockedByEnvironment || r.Reason == "" || len(r.Attempts) != 0 {
		t.Errorf("%+v", r)
	}
	if _, err := nvml.Open(); err == nil {
		t.Error("no error")
	}
}
