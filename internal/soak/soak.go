// Package soak drives any OpenAI-compatible endpoint with many logical contexts over a few workers and writes what happened as a
// run folder (package ledger). It judges the endpoint as a stranger would: by HTTP, /proc and whatever the endpoint exposes.
//
// The contract "plain" is a closed loop: W workers take contexts in their order, send one chat completion each, stream the answer,
// judge it by a closed list of outcomes, try again what may be tried again, and ask the task's oracle. Every attempt is a row, written
// when it ends. Everything in the ledger is computed from what lies on disk.
//
// The contract "controlled" does more to itself: a canary with an oracle must fail a base that is really bad, which is then rolled
// back; contexts have several turns and lie on the disk between them; planned faults hit some in each phase of an attempt; now and then
// the run stands still until the server's gauges are back.
package soak

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
	"cotenant/internal/scrape"
)

// Result is a run that has written its ledger.
type Result struct {
	Dir         string
	Ledger      ledger.Ledger
	Interrupted bool
}

// Exit codes of a soak; see docs/design.md.
const (
	ExitAdmitted    = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitNotAdmitted = 3
	ExitNotReady    = 4
	ExitInterrupted = 130
)

// ExitCode says how a run ended: err is Run's.
func ExitCode(res *Result, err error) int {
	var u *UsageError
	switch {
	case errors.As(err, &u), errors.Is(err, ledger.ErrNotEmpty):
		return ExitUsage
	case errors.Is(err, errNotRun):
		return ExitNotReady
	case errors.Is(err, context.Canceled), errors.Is(err, errInterrupted):
		return ExitInterrupted
	case err != nil:
		return ExitFailed
	case res.Interrupted:
		return ExitInterrupted
	case res.Ledger.Counts.Completed == 0, ownFault(&res.Ledger):
		return ExitFailed
	case res.Ledger.Admission.Admitted:
		return ExitAdmitted
	}
	return ExitNotAdmitted
}

// ownFault reports a run that this side's machine spoilt.
func ownFault(l *ledger.Ledger) bool {
	for _, o := range l.Counts.Outcomes {
		if o.Outcome == ledger.ClientExhausted && o.Count > 0 {
			return true
		}
	}
	return false
}

// Run makes a run. Cancelling ctx interrupts it: open attempts may end within Options.Grace, then they are cut, and the ledger of what
// was done is written; Options.Resume goes on from there. Errors that come before a request are *UsageError, those of an endpoint that
// answers nothing *NotReadyError: in both cases no run folder was made. A run in which everything failed is a Result.
func Run(ctx context.Context, o Options) (*Result, error) {
	s, err := newSession(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if o.Resume {
		if res, err := s.closed(); res != nil || err != nil {
			return res, err
		}
	}
	for _, text := range fewSamples(o.Load, o.Contexts) {
		o.Log(text)
	}
	if o.Model == "" {
		if o.Model, err = s.client.pickModel(ctx, &o, s.target); err != nil {
			return nil, err
		}
	}
	if s.maker, err = newBodyMaker(&o); err != nil {
		return nil, err
	}
	ready, err := s.client.ready(ctx, &o, s.target, s.maker, o.Source.Task(0).Messages)
	if err != nil {
		return nil, err
	}
	s.findServer(ctx)
	defer s.closeFiles()
	if err := s.open(ready); err != nil {
		return nil, err
	}
	return s.run(ctx, ready)
}

// session is one segment of a run.
type session struct {
	o      *Options
	target target
	client *client
	maker  *bodyMaker
	redact *redactor

	cfg    ledger.Config
	commit *ledger.Committer
	place  *ledger.Committer // of commitments to where the run is
	base   string            // the shared base's commitment
	w      Lines
	lock   *os.File
	clk    *clock

	records *records
	park    *parking      // nil where contexts have one turn
	pacer   *pacer        // nil without a load plan
	tenants []int         // their pattern; empty: there are none
	slots   *openAttempts // what workers are at
	faults  *faults       // nil unless the contract is controlled

	rolledBack bool           // an earlier segment has had its bad base fail
	pastFaults map[int64]bool // contexts whose fault was done in an earlier segment

	budget  budget
	sampler *sampler
	scraper *http.Transport
	load    *http.Transport

	count struct {
		sync.Mutex
		Progress
		inARow int64 // failed contexts since the last result
	}
	abort abort
}

// newSession checks everything that needs no request.
func newSession(ctx context.Context, o *Options) (*session, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	s := &session{o: o, pastFaults: map[int64]bool{}}
	var err error
	if s.target, err = parseEndpoint(o.Endpoint); err != nil {
		return nil, err
	}
	if o.member() == nil {
		if err := s.checkFolder(); err != nil {
			return nil, err
		}
	}
	if _, err := newBodyMaker(o); err != nil {
		return nil, err
	}
	if len(o.Source.Task(0).Messages) == 0 {
		return nil, usage("the workload's first prompt is empty")
	}
	s.target.scope = scopeOf(ctx, s.target.root)
	if err := o.guard(s.target.scope); err != nil {
		return nil, err
	}
	if o.member() == nil {
		if err := checkDisk(o); err != nil {
			return nil, err
		}
	}
	secrets := []string{o.APIKey}
	header := defaultHeader(o.Build.Version)
	for name, values := range o.Header {
		header[http.CanonicalHeaderKey(name)] = values
		for _, v := range values {
			secrets = append(secrets, v)
			secrets = append(secrets, strings.Fields(v)...) // "Bearer KEY": the key alone, too
		}
	}
	if o.APIKey != "" {
		header.Set("Authorization", "Bearer "+o.APIKey)
	}
	if u, err := url.Parse(o.GPU.From); err == nil && u.Host != "" {
		secrets = append(secrets, u.Host, u.Hostname())
	}
	s.redact = newRedactor(s.target.root, secrets...)
	s.load = newTransport(o.Workers, o.Timeouts.Headers, o.Dial)
	s.client = &client{http: &http.Client{Transport: s.load, CheckRedirect: noRedirect}, url: s.target.chat, header: header,
		timeouts: o.Timeouts, drain: 250 * time.Millisecond, redact: s.redact}
	return s, nil
}

// checkFolder makes sure of the run folder: a new one, or one with a run that is to go on.
func (s *session) checkFolder() error {
	o := s.o
	if empty, err := ledger.IsEmpty(o.Out); o.Resume && err == nil && empty {
		o.Log("the run in " + o.Out + " had not begun: it begins")
		o.Resume = false
	}
	if o.Resume {
		return s.reopenConfig()
	}
	return mustBeEmpty(o.Out)
}

func mustBeEmpty(dir string) error {
	empty, err := ledger.IsEmpty(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return usage("the run folder: %v", err)
	case !empty:
		return usage("the run folder %s isn't empty; name another one, or go on with that run by --resume", dir)
	}
	return nil
}

// Bytes on disk: a row has about 1,000, a sample 3,000.
const (
	rowBytes    = 1400
	spareBytes  = 64 << 20
	logPerBytes = 1 << 20
)

// checkDisk refuses a run whose rows won't fit, with something to spare for samples and retries.
func checkDisk(o *Options) error {
	free, err := freeBytes(o.Out)
	if err != nil {
		o.Log("the free space of the run folder isn't known: " + err.Error())
		return nil
	}
	if need := o.Contexts*o.Turns*rowBytes + spareBytes; free < need {
		return usage("the run folder needs about %d MiB and its disk has %d MiB free", need/logPerBytes, free/logPerBytes)
	}
	return nil
}

func (s *session) close() {
	s.load.CloseIdleConnections()
	if s.scraper != nil {
		s.scraper.CloseIdleConnections()
	}
	if s.lock != nil {
		s.lock.Close()
	}
}

// findServer sets up the sampler, and finds the process behind a loopback port.
func (s *session) findServer(ctx context.Context) {
	o := s.o
	s.scraper = newTransport(4, 2*time.Second, o.Dial)
	p := &sampler{redact: s.redact, period: o.Period, self: scrape.NewSelf(), last: -1, pid: o.ServerPID}
	p.http = &scrape.Client{HTTP: &http.Client{Transport: s.scraper, CheckRedirect: noRedirect}, Timeout: max(o.Period*8/10, 100*time.Millisecond),
		Header: http.Header{}}
	if auth := s.client.header.Values("Authorization"); len(auth) > 0 {
		p.http.Header["Authorization"] = auth
	}
	root := s.target.root.String()
	p.metrics, p.vars = root+"/metrics", root+"/debug/vars"
	switch {
	case o.MetricsURL == "none":
		p.metrics = ""
	case o.MetricsURL != "":
		p.metrics = o.MetricsURL
		// A key is for the endpoint alone.
		if !sameHost(o.MetricsURL, s.target.root.Host) {
			p.http.Header = http.Header{}
			p.vars = ""
		}
	}
	switch {
	case o.member() != nil:
		p.reason, p.metrics, p.vars = "the host of the run samples the server", "", ""
	case o.ServerPID != 0:
	case s.target.scope != ledger.ScopeLoopback:
		p.reason = "the endpoint isn't on this machine"
	case o.Dial != nil:
		p.reason = "the endpoint has no port"
	default:
		port, err := strconv.Atoi(s.target.root.Port())
		if err != nil {
			port = map[string]int{"http": 80, "https": 443}[s.target.root.Scheme]
		}
		p.port = port
		if p.pid, err = p.proc.Listener(port); err != nil {
			p.reason = err.Error()
		}
	}
	if o.MetricsURL == "" {
		p.ollama = root + "/api/ps"
	}
	dcgm := &scrape.Client{HTTP: p.http.HTTP, Timeout: p.http.Timeout} // another machine's, maybe: it gets no key
	p.gpus = newGPUs(ctx, o.GPU, s.target.scope == ledger.ScopeLoopback, dcgm, p.http.Timeout)
	s.o.InProcess = s.o.InProcess || p.pid == os.Getpid()
	s.sampler = p
}

// open makes the run folder and its config, or goes on with it, and logs what the first completion taught.
func (s *session) open(ready readiness) error {
	o := s.o
	s.clk = newClock()
	s.records = newRecords(o.Contexts, o.Turns)
	s.budget.limit, s.budget.spent = o.MaxSpendTokens, ready.spent
	var err error
	switch {
	case o.member() != nil:
		err = s.join(o.member())
	case o.Resume:
		err = s.reopen()
	default:
		err = s.create()
	}
	if err != nil {
		return err
	}
	s.base = s.cfg.Workload.BaseCommit
	s.sampler.clk, s.sampler.w, s.sampler.gpus.commit = s.clk, s.w, s.place
	if err := errors.Join(s.openContract(), s.openLoad()); err != nil {
		return err
	}
	events := []ledger.Event{{Kind: ledger.EventReady, Value: ledger.Some(ready.took.Microseconds())},
		{Kind: ledger.EventCanary, Value: ready.completionTokens}}
	if ready.usageRefused {
		events = append(events, ledger.Event{Kind: ledger.EventUsageRefused})
		o.Log("the server refuses stream_options: without usage a run can't be admitted")
	}
	for _, e := range events {
		e.Segment = s.w.Segment()
		err = errors.Join(err, s.w.Event(e))
	}
	return err
}

// create writes config.json: from here on the run is registered.
func (s *session) create() error {
	o := s.o
	secret := ledger.NewSecret()
	commit, err := ledger.NewCommitter(secret)
	if err != nil {
		return err
	}
	s.commit = commit
	secretOfPlace := ledger.NewSecret()
	if s.place, err = ledger.NewCommitter(secretOfPlace); err != nil {
		return err
	}
	base := []byte(o.Source.Base())
	names := make([]string, 0, len(o.Header))
	for name := range o.Header {
		names = append(names, http.CanonicalHeaderKey(name))
	}
	slices.Sort(names)
	s.cfg = ledger.Config{
		RunID: ledger.NewRunID(), RunOrdinal: nextOrdinal(o.Out), Nonce: o.Nonce, Secret: secret, PlaceSecret: secretOfPlace, StartedWallUS: s.clk.start.UnixMicro(),
		Contract: o.Contract, Contexts: o.Contexts, TurnsPerContext: o.Turns, Workers: o.Workers, MaxAttempts: o.MaxAttempts,
		Endpoint: o.Endpoint, EndpointScope: s.target.scope, API: "chat.completions", InProcess: o.InProcess, Model: o.Model,
		HeaderNames: names, ConnectionPolicy: "keepalive",
		Workload: ledger.Workload{Name: o.Source.Name(), SHA256: o.Source.Hash(), Seed: o.Workload.Seed, BaseTokens: o.Workload.BaseTokens,
			BaseCommit: commit.Commit(ledger.LabelBase, base), BaseBytes: int64(len(base)), Unique: o.Workload.Unique},
		Sampling: s.maker.describe(o),
		Timeouts: ledger.Timeouts{HeadersUS: o.Timeouts.Headers.Microseconds(), IdleUS: o.Timeouts.Idle.Microseconds(),
			TotalUS: o.Timeouts.Total.Microseconds()},
		MetricsURL: s.sampler.metrics, ResourceUS: o.Period.Microseconds(), Client: o.Build, RulesVersion: o.RulesVersion,
	}
	if len(base) > 0 {
		sum := sha256.Sum256(base)
		s.cfg.BaseSHA256 = hex.EncodeToString(sum[:])
	}
	if s.sampler.pid > 0 {
		s.cfg.ServerPID = ledger.Some(int64(s.sampler.pid))
	}
	if o.MaxSpendTokens > 0 {
		s.cfg.MaxSpend = ledger.Some(o.MaxSpendTokens)
	}
	if o.Contract == ledger.ContractControlled {
		s.cfg.Controlled = s.controlPlan()
	}
	s.cfg.Load, s.cfg.Declared, s.cfg.Shared = o.Load, o.Declared, o.Share != nil
	w, err := ledger.Create(o.Out, s.cfg)
	if err != nil {
		return err
	}
	s.w = w
	if o.Share != nil {
		// What Create has filled in is on the disk.
		f, err := ledger.OpenFolder(o.Out)
		if err == nil {
			err = o.Share.Host(f.Config, w)
		}
		if err != nil {
			return fmt.Errorf("hosting the run: %w", err)
		}
	}
	if s.lock, err = lockFolder(filepath.Join(o.Out, ledger.ConfigFile)); err != nil {
		return err
	}
	if o.Turns > 1 {
		if s.park, err = createPark(o.Out, o.Contexts, s.commit); err != nil {
			return err
		}
	}
	if o.Share == nil {
		s.slots, err = openSlots(o.Out)
	}
	return err
}

// controlPlan is what a controlled run registers.
func (s *session) controlPlan() *ledger.ControlPlan {
	o := s.o
	idle := 2 * time.Second
	if o.Timeouts.Idle > 0 {
		idle = min(idle, o.Timeouts.Idle)
	}
	return &ledger.ControlPlan{FaultSeed: s.cfg.RunID, FaultBlock: o.FaultBlock, StallIdleUS: idle.Microseconds(), CanaryAsked: canaryAsked,
		CanaryNeeded: canaryNeeded, BadBaseCommit: s.commit.Commit(ledger.LabelBase, []byte(o.Source.(loadgen.Conversations).BadBase())),
		QuietPoints: quietPoints, QuietLimitUS: o.QuietLimit.Microseconds()}
}

// openContract sets up what the contract needs beside a closed loop.
func (s *session) openContract() error {
	p := s.cfg.Controlled
	if p == nil {
		return nil
	}
	s.records.pauseAt(p.QuietPoints)
	f, err := newFaults(s.cfg.FaultPlan(), time.Duration(p.StallIdleUS)*time.Microsecond, *s.client, s.target, s.o)
	if err != nil {
		return err
	}
	f.record = func(e ledger.Event) error {
		e.TUS, e.Segment = max(s.clk.now(), s.clk.lastStamp()), s.w.Segment()
		return s.w.Event(e)
	}
	f.fail = s.abort.fail
	f.done = s.pastFaults
	s.faults = f
	return nil
}

// closeFiles ends what open has begun, beside the writer.
func (s *session) closeFiles() {
	if s.faults != nil {
		s.faults.close()
	}
	if s.park != nil {
		s.park.close()
	}
	if s.slots != nil {
		s.slots.close()
	}
}

// nextOrdinal is one more than the largest ordinal of the runs beside dir, so that a run which was thrown away leaves a gap.
func nextOrdinal(dir string) int64 {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return 1
	}
	configs, _ := filepath.Glob(filepath.Join(filepath.Dir(abs), "*", ledger.ConfigFile))
	last := int64(0)
	for _, path := range configs[:min(len(configs), 10_000)] {
		if f, err := ledger.OpenFolder(filepath.Dir(path)); err == nil {
			last = max(last, f.Config.RunOrdinal)
		}
	}
	return last + 1
}
