//go:build !linux || !(amd64 || arm64) || nocuda

package query_test

import (
	"context"
	"testing"

	"cotenant/internal/cuda/query"
	"cotenant/internal/observe"
)

// Where no library can be opened nothing is run and the report says why.
func TestBlocked(t *testing.T) {
	if r := query.Driver(context.Background(), query.Options{}); r.Status != observe.BlockedByEnvironment || r.Reason == "" || len(r.Attempts) != 0 {
		t.Errorf("%+v", r)
	}
	if r := query.Runtime(context.Background(), query.Options{}); r.Status != observe.BlockedByEnvironment || r.Reason == "" {
		t.Errorf("%+v", r)
	}
}
