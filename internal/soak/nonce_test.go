package soak

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cotenant/internal/verify"
)

// A verifier's nonce begins every prompt, and a verifier who makes the prompts again finds it there.
func TestNonceIsInEveryPrompt(t *testing.T) {
	l := listen(t)
	var without atomic.Int64
	e := &endpoint{t: t, answer: func(w *reply) {
		if !strings.HasPrefix(w.request.Messages[0].Content, "Challenge 5f0c-1\n") {
			without.Add(1)
		}
		w.normal(solve(w.request.Messages), time.Millisecond, time.Millisecond)
	}}
	defer e.serve(l)()
	o := options(t, nil, 100)
	o.Endpoint, o.Nonce, o.Period = "http://"+l.Addr().String(), "5f0c-1", 50*time.Millisecond
	res, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	// The request that asks whether the endpoint answers at all isn't one of the run's.
	if n := without.Load(); n > 1 || res.Ledger.Nonce != "5f0c-1" {
		t.Errorf("%d prompts were without the nonce; the ledger has %q", n, res.Ledger.Nonce)
	}
	report, err := verify.Dir(o.Out, verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		if r.Rule == "R-PROMPT-02" && r.Result != verify.Pass || r.Result == verify.Fail {
			t.Errorf("%s: %s %s", r.Rule, r.Result, r.Detail)
		}
	}
	// A run goes on as it began.
	o.Resume, o.Nonce = true, "other"
	if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), "nonce") {
		t.Errorf("a run goes on under another nonce: %v", err)
	}
}
