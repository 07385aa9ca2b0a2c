package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"cotenant/internal/ledger"
	"cotenant/internal/soak"
)

// Host is the process that has the run folder. It is a soak.Share.
type Host struct {
	share
	log      func(string)
	embedded *server.Server
	dir      string // of the embedded server
	address  string
	ackWait  time.Duration

	cfg ledger.Config
	w   *ledger.Writer

	collecting context.CancelFunc
	collectors sync.WaitGroup

	mu       sync.Mutex
	changed  sync.Cond
	members  map[int64]*memberState
	closed   bool // nobody may join any more
	retired  int64
	segments int64
	failure  error
}

type memberState struct {
	seen time.Time
	gone bool
}

// HostOptions say where the queue is.
type HostOptions struct {
	Address string // of a NATS cluster with JetStream; empty: a server in this process
	Listen  string // of that server; empty: 127.0.0.1 and a free port
	Log     func(string)
}

// NewHost starts the embedded server, or checks that the cluster answers. Close must be called.
func NewHost(o HostOptions) (*Host, error) {
	h := &Host{log: o.Log, members: map[int64]*memberState{}, address: o.Address, segments: 1, ackWait: ackWait}
	h.changed.L = &h.mu
	if h.log == nil {
		h.log = func(string) {}
	}
	if o.Address != "" {
		b, err := connect(o.Address, "check")
		if err != nil {
			return nil, err
		}
		b.nc.Close()
		return h, nil
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	var err error
	if h.dir, err = tempDir(); err != nil {
		return nil, fmt.Errorf("making the queue's folder: %w", err)
	}
	if h.embedded, h.address, err = embed(o.Listen, h.dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(h.dir))
	}
	return h, nil
}

// Close ends the queue and removes what it kept.
func (h *Host) Close() error {
	var errs []error
	if h.stop != nil {
		h.stop()
	}
	if h.collecting != nil {
		h.collecting()
		h.collectors.Wait()
	}
	if h.bus != nil {
		ctx, cancel := context.WithTimeout(context.Background(), call)
		defer cancel()
		errs = append(errs, h.bus.deleteStreams(ctx))
		h.bus.nc.Close()
	}
	if h.embedded != nil {
		h.embedded.Shutdown()
		h.embedded.WaitForShutdown()
		errs = append(errs, os.RemoveAll(h.dir))
	}
	return errors.Join(errs...)
}

// Member is nil: this is the host.
func (h *Host) Member() *soak.Membership { return nil }

// Host fills the queue and lets others join.
func (h *Host) Host(cfg ledger.Config, w *ledger.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b, err := connect(h.address, cfg.RunID)
	if err != nil {
		return err
	}
	b.ackWait = h.ackWait
	h.share.bus, h.share.held = b, map[int64]*hold{}
	h.cfg, h.w = cfg, w
	if err := b.createStreams(ctx); err != nil {
		return err
	}
	if err := h.fillWork(ctx); err != nil {
		return err
	}
	if err := h.begin(ctx); err != nil {
		return err
	}
	if err := h.collect(); err != nil {
		return err
	}
	if _, err := b.nc.Subscribe(b.aliveSubject(), h.alive); err != nil {
		return fmt.Errorf("listening for members: %w", err)
	}
	if _, err := b.nc.Subscribe(b.joinSubject(), h.join); err != nil {
		return fmt.Errorf("listening for members: %w", err)
	}
	h.log("others may share this run: cotenant soak --join " + h.address + "/" + cfg.RunID)
	return nil
}

// fillWork publishes a message for each context, some at once.
func (h *Host) fillWork(ctx context.Context) error {
	for n := range h.cfg.Contexts {
		if _, err := h.bus.js.PublishAsync(h.bus.subject(workWord, n), nil); err != nil {
			return fmt.Errorf("filling the queue: %w", err)
		}
	}
	select {
	case <-h.bus.js.PublishAsyncComplete():
	case <-ctx.Done():
		return fmt.Errorf("filling the queue: %w", ctx.Err())
	}
	st, err := h.bus.js.Stream(ctx, h.bus.stream(work))
	if err != nil {
		return err
	}
	if n := st.CachedInfo().State.Msgs; n != uint64(h.cfg.Contexts) {
		return fmt.Errorf("filling the queue: it has %d of %d contexts", n, h.cfg.Contexts)
	}
	return nil
}

// welcome answers a member.
type welcome struct {
	Config    []byte `json:"config"` // canonical
	Segment   int64  `json:"segment"`
	AckWaitUS int64  `json:"ack_wait_us"`
	Refused   string `json:"refused"` // why, where it may not join
}

// join gives a member the config, or, if it asks to start, a segment, whose start event is written first.
func (h *Host) join(msg *nats.Msg) {
	reply := welcome{AckWaitUS: h.ackWait.Microseconds()}
	config, err := ledger.Marshal(h.cfg)
	h.mu.Lock()
	switch {
	case err != nil:
		reply.Refused = err.Error()
	case h.closed:
		reply.Refused = "the run is at its end"
	case string(msg.Data) == "start":
		reply.Config, reply.Segment = config, h.segments
		hash, err := ledger.HashConfig(h.cfg)
		if err == nil {
			err = h.w.Event(ledger.Event{Segment: h.segments, Kind: ledger.EventStart, WallUS: ledger.Some(time.Now().UnixMicro()), ConfigSHA256: hash})
		}
		if err != nil {
			reply = welcome{Refused: err.Error()}
			break
		}
		h.members[h.segments] = &memberState{seen: time.Now()}
		h.segments++
	default:
		reply.Config = config
	}
	h.mu.Unlock()
	if b, err := json.Marshal(reply); err == nil {
		msg.Respond(b)
	}
}

// alive notes a member's sign of life: its segment.
func (h *Host) alive(msg *nats.Msg) {
	var segment int64
	if json.Unmarshal(msg.Data, &segment) != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.members[segment]; m != nil {
		m.seen = time.Now()
	}
}

// collect writes rows and members' lines to the run folder, in the streams' order.
func (h *Host) collect() error {
	ctx, cancel := context.WithCancel(context.Background())
	h.collecting = cancel
	for kind, take := range map[string]func(jetstream.Msg) error{rows: h.row, lines: h.line} {
		c, err := h.bus.js.OrderedConsumer(ctx, h.bus.stream(kind), jetstream.OrderedConsumerConfig{})
		if err != nil {
			return fmt.Errorf("reading the stream %s: %w", kind, err)
		}
		it, err := c.Messages()
		if err != nil {
			return fmt.Errorf("reading the stream %s: %w", kind, err)
		}
		context.AfterFunc(ctx, it.Stop)
		h.collectors.Go(func() {
			for {
				msg, err := it.Next()
				if ctx.Err() != nil {
					return
				}
				if err == nil {
					err = take(msg)
				}
				if err != nil {
					h.fail(fmt.Errorf("collecting from %s: %w", kind, err))
					return
				}
			}
		})
	}
	return nil
}

func (h *Host) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failure = errors.Join(h.failure, err)
	h.changed.Broadcast()
}

// row writes a row that won its place.
func (h *Host) row(msg jetstream.Msg) error {
	var row ledger.Row
	if _, err := ledger.UnmarshalCanonical(msg.Data(), &row, nil); err != nil {
		return err
	}
	if err := h.w.Row(row); err != nil {
		return err
	}
	if msg.Headers().Get(headerRetired) == "1" {
		h.mu.Lock()
		h.retired++
		h.changed.Broadcast()
		h.mu.Unlock()
	}
	return nil
}

// line writes a member's sample or event.
func (h *Host) line(msg jetstream.Msg) error {
	var l line
	if err := json.Unmarshal(msg.Data(), &l); err != nil {
		return err
	}
	switch {
	case l.Resource != nil:
		return h.w.Resource(*l.Resource)
	case l.Event != nil:
		return h.w.Event(*l.Event)
	case l.Gone:
		h.mu.Lock()
		defer h.mu.Unlock()
		if m := h.members[l.Segment]; m != nil {
			m.gone = true
		}
		h.changed.Broadcast()
	}
	return nil
}

// Finish waits until all rows are written and each member is gone or taken for dead. An interrupt ends the waiting: members then find
// no run any more.
func (h *Host) Finish(ctx context.Context) (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.failure == nil {
		if ctx.Err() != nil {
			break
		}
		if h.retired >= h.cfg.Contexts {
			h.closed = true
			if !h.anyAlive() {
				break
			}
		}
		// Nothing else tells that a member has fallen silent, or of an interrupt.
		look := time.AfterFunc(h.ackWait/10, h.changed.Broadcast)
		h.changed.Wait()
		look.Stop()
	}
	h.closed = true
	return h.cfg.Contexts - h.retired, h.failure
}

// anyAlive reports whether a member neither left nor fell silent for longer than what it holds would stay its own.
func (h *Host) anyAlive() bool {
	for segment, m := range h.members {
		if m.gone {
			continue
		}
		if time.Since(m.seen) < 2*h.ackWait {
			return true
		}
		m.gone = true
		h.log(fmt.Sprintf("the process of segment %d fell silent", segment))
	}
	return false
}
