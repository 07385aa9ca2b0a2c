package soak

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"cotenant/internal/faultproxy"
	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// errPlanned ends an attempt that the run's plan cancels.
var errPlanned = errors.New("cancelled by the run's plan")

// faults does a controlled run's planned faults: it sends the attempts that are due through a proxy of its own, or cancels them itself.
type faults struct {
	plan      loadgen.FaultPlan
	stallIdle time.Duration
	record    func(ledger.Event) error // writes an event, filling in when and in which segment
	fail      func(error)
	proxy     *faultproxy.Proxy
	client    client // through the proxy

	mu   sync.Mutex
	done map[int64]bool     // contexts whose fault was done, in this segment or before
	at   map[int64]*planned // attempts that are open and planned
}

// planned is one attempt that is to meet a fault.
type planned struct {
	line    *faults
	kind    loadgen.FaultKind
	id      attemptID
	watch   *watch
	cancel  context.CancelCauseFunc
	mu      sync.Mutex
	did     bool // the client cancelled
	refused bool // the event couldn't be written: the fault isn't done
}

func newFaults(plan loadgen.FaultPlan, stallIdle time.Duration, c client, t target, o *Options) (*faults, error) {
	f := &faults{plan: plan, stallIdle: stallIdle, done: map[int64]bool{}, at: map[int64]*planned{}}
	var err error
	f.proxy, err = faultproxy.New(faultproxy.Options{Upstream: t.root, Plan: plan, Dial: o.Dial, OnFault: f.onFault})
	if err != nil {
		return nil, err
	}
	// A connection each: a reset of one that was kept alive would pass for a server that had closed it (sendTrace.stale).
	transport := newTransport(o.Workers, o.Timeouts.Headers, nil)
	transport.DisableKeepAlives = true
	f.client = c
	f.client.http = &http.Client{Transport: transport, CheckRedirect: noRedirect}
	f.client.url = f.proxy.URL() + t.chat[len(t.root.String()):]
	return f, nil
}

func (f *faults) close() error { return f.proxy.Close() }

// due says with which client an attempt is made: direct, or, where its fault hasn't been done yet, through the proxy or with a cancel.
func (f *faults) due(direct *client, id attemptID) (*client, *planned) {
	fault, ok := f.plan.Of(id.context, id.turn)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !ok || f.done[id.context] {
		return direct, nil
	}
	p := &planned{line: f, kind: fault.Kind, id: id}
	f.at[id.context] = p
	c := *direct
	if !fault.Kind.ByClient() {
		c = f.client
		c.header = c.header.Clone()
		c.header.Set(faultproxy.Header, faultproxy.Name(id.context, id.turn, id.attempt))
	}
	c.plan = p
	return &c, p
}

// over forgets an attempt.
func (f *faults) over(p *planned) {
	if p != nil {
		f.mu.Lock()
		delete(f.at, p.id.context)
		f.mu.Unlock()
	}
}

// onFault is called by the proxy before a fault shows.
func (f *faults) onFault(e faultproxy.Event) error {
	f.mu.Lock()
	p := f.at[e.Context]
	f.mu.Unlock()
	if p == nil || p.id != (attemptID{e.Context, e.Turn, e.Attempt}) {
		return fmt.Errorf("context %d isn't open", e.Context) // the client has gone by itself
	}
	if err := f.log(p, e.Events); err != nil {
		return err
	}
	if e.Kind == loadgen.StallMidStream {
		p.watch.tighten(f.stallIdle, errIdleTimeout)
	}
	return nil
}

// log writes a fault's event; from here on it counts as done.
func (f *faults) log(p *planned, events int64) error {
	err := f.record(ledger.Event{Kind: ledger.EventFault, Context: ledger.Some(p.id.context), Turn: ledger.Some(p.id.turn),
		Attempt: ledger.Some(p.id.attempt), Value: ledger.Some(events), Detail: string(p.kind)})
	if err != nil {
		f.fail(err)
		return err
	}
	f.mu.Lock()
	f.done[p.id.context] = true
	f.mu.Unlock()
	return nil
}

// begin ties a plan to its attempt.
func (p *planned) begin(w *watch, cancel context.CancelCauseFunc) {
	if p != nil {
		p.watch, p.cancel = w, cancel
	}
}

// reached tells a plan that its attempt has come to a phase: sent (before headers) or first token, after so many events.
func (p *planned) reached(kind loadgen.FaultKind, events int64) {
	if p == nil || p.kind != kind {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.did || p.refused {
		return
	}
	if p.refused = p.line.log(p, events) != nil; p.refused {
		return
	}
	p.did = true
	p.cancel(errPlanned)
}

// cancelled reports whether the client ended the attempt: then nothing that came after counts.
func (p *planned) cancelled() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.did
}
