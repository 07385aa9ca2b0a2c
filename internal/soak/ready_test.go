package soak

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cotenant/internal/ledger"
)

func TestReadiness(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer func(w *reply)
		models []string
		want   string // in the error; empty: the run is made
		code   int
	}{
		{"loads for a while", func(w *reply) {
			if w.n <= 5 {
				w.WriteHeader(503)
				w.send(`{"error":{"message":"Loading model","code":503}}`)
				return
			}
			solver(w)
		}, nil, "", ExitNotAdmitted},
		{"hangs and lists its models", func(w *reply) { w.sleep(time.Hour) }, []string{"m"}, "lists its models but completions hang", ExitNotReady},
		{"hangs", func(w *reply) { w.sleep(time.Hour) }, nil, "timeout_", ExitNotReady},
		{"wants a key", func(w *reply) {
			w.WriteHeader(401)
			w.send(`{"error":{"message":"Invalid API Key"}}`)
		}, nil, "COTENANT_API_KEY", ExitNotReady},
		{"doesn't know the model", func(w *reply) { w.WriteHeader(404) }, nil, "check --endpoint and --model", ExitNotReady},
		{"refuses the roles", func(w *reply) {
			w.WriteHeader(400)
			w.send(`{"error":{"message":"System role not supported by the chat template"}}`)
		}, nil, "--prompts", ExitNotReady},
		{"doesn't stream", func(w *reply) {
			w.Header().Set("Content-Type", "application/json")
			w.send(`{"choices":[{"message":{"content":"x"}}]}`)
		}, nil, "doesn't stream", ExitNotReady},
		{"is a web site", func(w *reply) { w.send("<html>") }, nil, "OpenAI-compatible", ExitNotReady},
		{"answers an empty first token", func(w *reply) {
			if w.request.MaxTokens == 1 {
				w.begin()
				w.send(w.role() + w.finish("length") + w.usage(5, 1) + done)
				return
			}
			solver(w)
		}, nil, "", ExitNotAdmitted},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				e := &endpoint{t: t, answer: test.answer, models: test.models}
				defer e.serve(m)()
				o := options(t, m, 5)
				start := time.Now()
				res, err := Run(context.Background(), o)
				if ExitCode(res, err) != test.code {
					t.Fatalf("exit code %d, %v", ExitCode(res, err), err)
				}
				if test.want == "" {
					return
				}
				if !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %q, want %q in it", err, test.want)
				}
				if time.Since(start) > o.ReadyTimeout+150*time.Second {
					t.Errorf("it took %v to give up", time.Since(start))
				}
				if _, err := os.Stat(o.Out); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("a run folder was made: %v", err)
				}
			})
		})
	}
}

func TestCanaryAdapts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t}
		e.answer = func(w *reply) {
			switch {
			case w.request.StreamOptions != nil:
				w.WriteHeader(422)
				w.send(`{"detail":"extra fields not permitted: stream_options"}`)
			case strings.Contains(string(w.raw), `"max_tokens"`):
				w.WriteHeader(400)
				w.send(`{"error":{"message":"Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}}`)
			default:
				w.begin()
				w.sleep(first)
				w.send(w.content(solve(w.request.Messages)) + w.finish("stop") + done)
			}
		}
		defer e.serve(m)()
		o := options(t, m, 100)
		res, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		l := &res.Ledger
		if l.Counts.Completed != 100 || l.Counts.UsageResponses != 0 || l.Counts.UsageMissing != 100 || l.Tokens.Prompt != 0 || ExitCode(res, nil) != ExitNotAdmitted {
			t.Errorf("%+v, %v", l.Counts, l.Admission.Why)
		}
		if failed := failedRules(t, o.Out); failed != "R-USAGE-01" {
			t.Errorf("rules that fail: %s", failed)
		}
		if !strings.Contains(eventsOf(t, o.Out), "usage_refused") {
			t.Errorf("events %s", eventsOf(t, o.Out))
		}
		if f, err := ledger.OpenFolder(o.Out); err != nil || f.Config.Sampling.IncludeUsage || f.Config.Sampling.MaxTokensMember != "max_completion_tokens" {
			t.Errorf("%+v, %v", f.Config.Sampling, err)
		}
	})
}

// TestModelListWantsAKey: waiting doesn't mend a key that is missing.
func TestModelListWantsAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, answer: solver, models: []string{"m"}, key: "secret"}
		defer e.serve(m)()
		o := options(t, m, 5)
		o.Model = ""
		start := time.Now()
		res, err := Run(context.Background(), o)
		if ExitCode(res, err) != ExitNotReady || !strings.Contains(err.Error(), "COTENANT_API_KEY") || time.Since(start) > time.Second {
			t.Errorf("exit code %d after %v: %v", ExitCode(res, err), time.Since(start), err)
		}
	})
}

func TestModelIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, answer: solver, models: []string{"the-one"}}
		defer e.serve(m)()
		o := options(t, m, 5)
		o.Model = ""
		res, err := Run(context.Background(), o)
		if err != nil || res.Ledger.Model != "the-one" {
			t.Fatalf("%+v, %v", res, err)
		}
		e.models = []string{"a", "b"}
		o.Out += "2"
		var u *UsageError
		if _, err = Run(context.Background(), o); !errors.As(err, &u) || !strings.Contains(err.Error(), "a, b") {
			t.Errorf("two models: %v", err)
		}
	})
}
