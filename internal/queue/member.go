package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
	"cotenant/internal/soak"
)

// Member is a process that joined another's run. It is a soak.Share.
type Member struct {
	share
	membership *soak.Membership
}

// Join asks a host for its run. join is what the host printed. Close must be called.
func Join(ctx context.Context, join string) (*Member, error) {
	address, run, err := ParseJoin(join)
	if err != nil {
		return nil, err
	}
	b, err := connect(address, run)
	if err != nil {
		return nil, err
	}
	m := &Member{share: share{bus: b, held: map[int64]*hold{}}}
	w, err := m.ask(ctx, "")
	if err != nil {
		b.nc.Close()
		return nil, err
	}
	b.ackWait = time.Duration(w.AckWaitUS) * time.Microsecond
	cfg, err := ledger.ReadConfig(w.Config)
	if err != nil {
		b.nc.Close()
		return nil, fmt.Errorf("the host's config: %w", err)
	}
	m.membership = &soak.Membership{Config: cfg, Start: func() (soak.Lines, error) { return m.start(ctx) }}
	return m, nil
}

func (m *Member) ask(ctx context.Context, what string) (welcome, error) {
	ctx, cancel := context.WithTimeout(ctx, call)
	defer cancel()
	msg, err := m.bus.nc.RequestWithContext(ctx, m.bus.joinSubject(), []byte(what))
	if err != nil {
		return welcome{}, fmt.Errorf("asking the run's host: %w", err)
	}
	var w welcome
	if err := json.Unmarshal(msg.Data, &w); err != nil {
		return welcome{}, fmt.Errorf("the host's answer: %w", err)
	}
	if w.Refused != "" {
		return welcome{}, fmt.Errorf("the run's host refuses: %s", w.Refused)
	}
	return w, nil
}

// Close ends the connection.
func (m *Member) Close() error {
	if m.stop != nil {
		m.stop()
	}
	m.bus.nc.Close()
	return nil
}

// Member returns what the host gave.
func (m *Member) Member() *soak.Membership { return m.membership }

// Host is the host's own.
func (m *Member) Host(ledger.Config, *ledger.Writer) error {
	return fmt.Errorf("internal error: a member doesn't host")
}

// Finish has nothing to wait for: what isn't retired is somebody else's.
func (m *Member) Finish(context.Context) (int64, error) { return 0, nil }

// start begins this process's segment.
func (m *Member) start(ctx context.Context) (soak.Lines, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	w, err := m.ask(ctx, "start")
	if err != nil {
		return nil, err
	}
	live, stop := context.WithCancel(context.WithoutCancel(ctx))
	keep := m.stop
	m.stop = func() { stop(); keep() }
	go m.alive(live, w.Segment)
	return &remote{m.bus, w.Segment}, nil
}

// alive tells the host that this process is there.
func (m *Member) alive(ctx context.Context, segment int64) {
	tick := time.NewTicker(m.bus.ackWait / 5)
	defer tick.Stop()
	for {
		m.bus.nc.Publish(m.bus.aliveSubject(), strconv.AppendInt(nil, segment, 10))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// remote sends a member's lines to the host.
type remote struct {
	bus     *bus
	segment int64
}

func (r *remote) Segment() int64 { return r.segment }

func (r *remote) Row(ledger.Row) error {
	return fmt.Errorf("internal error: a member's rows go through the queue")
}

func (r *remote) Resource(x ledger.Resource) error {
	if err := x.Check(); err != nil {
		return fmt.Errorf("sample: %w", err)
	}
	return r.bus.sendLine(line{Segment: r.segment, Resource: &x})
}

func (r *remote) Event(x ledger.Event) error {
	if err := x.Check(); err != nil {
		return fmt.Errorf("event: %w", err)
	}
	return r.bus.sendLine(line{Segment: r.segment, Event: &x})
}

// Close says that nothing more comes. The ledger is the host's to write.
func (r *remote) Close() (ledger.Ledger, error) {
	return ledger.Ledger{}, r.bus.sendLine(line{Segment: r.segment, Gone: true})
}

func (r *remote) Abandon() error { return r.bus.sendLine(line{Segment: r.segment, Gone: true}) }

// Options makes of the host's config what this process needs to take part. Its samples are of itself alone: the host watches the server. Prompts
// from a file must be given.
func (m *Member) Options(prompts loadgen.Source) (soak.Options, error) {
	c := &m.membership.Config
	o := soak.Options{Share: m, Endpoint: c.Endpoint, Model: c.Model, Contract: c.Contract, Turns: c.TurnsPerContext, Contexts: c.Contexts, Workers: c.Workers, MaxAttempts: c.MaxAttempts,
		MaxTokens: c.Sampling.MaxTokens, Nonce: c.Nonce, MetricsURL: "none", GPU: soak.GPUOptions{From: soak.GPUNone}, Period: time.Duration(c.ResourceUS) * time.Microsecond,
		Timeouts: soak.Timeouts{Headers: limit(c.Timeouts.HeadersUS), Idle: limit(c.Timeouts.IdleUS), Total: limit(c.Timeouts.TotalUS)}, BodyJSON: []byte(c.Sampling.ExtraBody),
		RulesVersion: c.RulesVersion, Confirm: true, Source: prompts}
	fraction := func(v ledger.Opt) *float64 {
		if !v.OK {
			return nil
		}
		f := float64(v.V) / 1e6
		return &f
	}
	o.Temperature, o.TopP = fraction(c.Sampling.TemperatureE6), fraction(c.Sampling.TopPE6)
	if c.Sampling.Seed.OK {
		o.Seed = &c.Sampling.Seed.V
	}
	if c.Workload.Name == loadgen.Version {
		seed, err := strconv.ParseUint(c.Workload.Seed, 10, 64)
		if err != nil {
			return soak.Options{}, fmt.Errorf("the run's seed: %w", err)
		}
		if o.Source, err = loadgen.New(loadgen.Options{Seed: seed, BaseTokens: int(c.Workload.BaseTokens.Or(0)), Unique: c.Workload.Unique}); err != nil {
			return soak.Options{}, fmt.Errorf("the run's workload: %w", err)
		}
	}
	if o.Source == nil {
		return soak.Options{}, fmt.Errorf("the run's prompts are of %s: give the same file by --prompts", strings.TrimPrefix(c.Workload.Name, loadgen.PromptsName))
	}
	if o.Source.Hash() != c.Workload.SHA256 {
		return soak.Options{}, fmt.Errorf("the prompts here have the hash %s, the run's %s", o.Source.Hash(), c.Workload.SHA256)
	}
	return o, nil
}

// limit is a timeout; 0 in a config means none.
func limit(us int64) time.Duration {
	if us == 0 {
		return -1
	}
	return time.Duration(us) * time.Microsecond
}
