// Package queue lets several soak processes make one run through NATS JetStream: contexts are handed out once, rows come together in the
// host's run folder, and each context retires exactly once though a process dies.
//
// What holds that together, of one run with the id R:
//
//   - The stream WORK-R has a message for each context and hands it to one process at a time (a work queue, explicit acknowledgements). A process
//     says every few seconds that it is still at what it holds; what a dead one held is handed out again after ackWait.
//   - The stream ROWS-R has the rows, one subject a context. A row is published only if the last message of its subject is the one that its
//     process knows of (Nats-Expected-Last-Subject-Sequence). Of two processes that both believe to hold a context, one alone can go on: the other's
//     row is refused and counts for nothing. Rows are written to the run folder by the host, from this stream, in its order.
//   - The stream OPEN-R has, for each context, the attempt that was last about to be sent: with the rows it says whether one was open when its
//     process died, so that sending it again is declared.
//   - Samples and events of members go through the stream LINES-R to the host. Each member is a segment with a clock of its own.
//
// The host starts a NATS server in its own process unless it is given a cluster.
package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"cotenant/internal/ledger"
	"cotenant/internal/soak"
)

// ackWait is after how long without a sign of life what a process holds is handed out again.
const ackWait = 5 * time.Second

// call bounds one exchange with the server.
const call = 10 * time.Second

// Headers of a row's message.
const (
	headerTries   = "Cotenant-Tries"
	headerRetired = "Cotenant-Retired"
)

// bus is a connection and the names of one run's streams.
type bus struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	run     string
	ackWait time.Duration
}

func connect(address, run string) (*bus, error) {
	nc, err := nats.Connect(address, nats.Name("cotenant soak"), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("connecting to NATS: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("using JetStream: %w", err)
	}
	return &bus{nc: nc, js: js, run: run, ackWait: ackWait}, nil
}

func (b *bus) stream(kind string) string { return kind + "-" + b.run }
func (b *bus) subject(kind string, n int64) string {
	return fmt.Sprintf("cotenant.%s.%s.%d", b.run, kind, n)
}
func (b *bus) all(kind string) string { return fmt.Sprintf("cotenant.%s.%s.*", b.run, kind) }

// Kinds of streams and the words of their subjects.
const (
	work, workWord   = "WORK", "work"
	rows, rowsWord   = "ROWS", "row"
	open, openWord   = "OPEN", "open"
	lines, linesWord = "LINES", "line"
)

// joinSubject is asked by members; the host answers.
func (b *bus) joinSubject() string  { return "cotenant." + b.run + ".join" }
func (b *bus) aliveSubject() string { return "cotenant." + b.run + ".alive" }

// createStreams makes the run's streams.
func (b *bus) createStreams(ctx context.Context) error {
	for _, c := range []jetstream.StreamConfig{
		{Name: b.stream(work), Subjects: []string{b.all(workWord)}, Retention: jetstream.WorkQueuePolicy},
		{Name: b.stream(rows), Subjects: []string{b.all(rowsWord)}},
		{Name: b.stream(open), Subjects: []string{b.all(openWord)}, MaxMsgsPerSubject: 1},
		{Name: b.stream(lines), Subjects: []string{b.all(linesWord)}},
	} {
		c.Storage = jetstream.FileStorage
		if _, err := b.js.CreateStream(ctx, c); err != nil {
			return fmt.Errorf("making the stream %s: %w", c.Name, err)
		}
	}
	_, err := b.js.CreateConsumer(ctx, b.stream(work), jetstream.ConsumerConfig{Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: b.ackWait,
		MaxAckPending: 100_000})
	if err != nil {
		return fmt.Errorf("making the consumer of work: %w", err)
	}
	return nil
}

func (b *bus) deleteStreams(ctx context.Context) error {
	var errs []error
	for _, kind := range []string{work, rows, open, lines} {
		errs = append(errs, b.js.DeleteStream(ctx, b.stream(kind)))
	}
	return errors.Join(errs...)
}

// embed starts a NATS server in this process, with a token of its own, and returns its URL.
func embed(listen, dir string) (*server.Server, string, error) {
	host, port, err := splitListen(listen)
	if err != nil {
		return nil, "", err
	}
	token := ledger.NewRunID()
	ns, err := server.NewServer(&server.Options{ServerName: "cotenant", Host: host, Port: port, Authorization: token, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true,
		MaxPayload: 1 << 20})
	if err != nil {
		return nil, "", fmt.Errorf("making the embedded NATS server: %w", err)
	}
	ns.Start()
	if !ns.ReadyForConnections(call) {
		ns.Shutdown()
		return nil, "", fmt.Errorf("the embedded NATS server doesn't listen on %s", listen)
	}
	return ns, fmt.Sprintf("nats://%s@%s", token, ns.Addr()), nil
}

func splitListen(listen string) (string, int, error) {
	host, text, ok := strings.Cut(listen, ":")
	port, err := strconv.Atoi(text)
	if !ok || err != nil || host == "" || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("queue address %q: want HOST:PORT", listen)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return host, port, nil
}

// CheckAddress refuses what can't be the address of a cluster: one or several nats:// or tls:// with a host, between commas. Its errors
// don't show the address, which may hold a password.
func CheckAddress(addresses string) error {
	for _, address := range strings.Split(addresses, ",") {
		u, err := url.Parse(strings.TrimSpace(address))
		switch {
		case err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Hostname() == "":
			return errors.New("want embedded, or nats://HOST:PORT or tls://HOST:PORT of a cluster with JetStream")
		case strings.Trim(u.Path, "/") != "":
			return errors.New("a cluster's address has no path; what a host prints for its members goes to --join")
		}
	}
	return nil
}

// ParseJoin splits what a host printed for its members: nats://…/RUN.
func ParseJoin(join string) (address, run string, err error) {
	u, err := url.Parse(join)
	if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Host == "" {
		return "", "", fmt.Errorf("%q isn't what a host prints for its members: nats://…/RUN", join)
	}
	run = strings.Trim(u.Path, "/")
	if len(run) != 32 || strings.Trim(run, "0123456789abcdef") != "" {
		return "", "", fmt.Errorf("%q names no run: want nats://…/ and the run's id of 32 hexadecimal digits", join)
	}
	u.Path = ""
	return u.String(), run, nil
}

// share is what host and members have in common: soak.Share but for Host and Finish.
type share struct {
	bus      *bus
	consumer jetstream.Consumer

	mu   sync.Mutex
	held map[int64]*hold

	stop context.CancelFunc
}

// hold is a context that this process is at.
type hold struct {
	msg  jetstream.Msg
	last uint64 // sequence of the last row of its subject
}

// begin starts taking work and telling that what is held is worked at.
func (s *share) begin(ctx context.Context) (err error) {
	if s.consumer, err = s.bus.js.Consumer(ctx, s.bus.stream(work), "workers"); err != nil {
		return fmt.Errorf("finding the work: %w", err)
	}
	live, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	go s.keep(live)
	return nil
}

// keep tells the server a few times in each ackWait that what is held is worked at.
func (s *share) keep(ctx context.Context) {
	tick := time.NewTicker(s.bus.ackWait / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		for _, h := range s.held {
			h.msg.InProgress()
		}
		s.mu.Unlock()
	}
}

// Take gives the next context. Where none is free it waits: a process that holds one may die.
func (s *share) Take(ctx context.Context) (soak.Work, bool, error) {
	for ctx.Err() == nil {
		batch, err := s.consumer.Fetch(1, jetstream.FetchMaxWait(250*time.Millisecond))
		if err != nil {
			return soak.Work{}, false, fmt.Errorf("asking for work: %w", err)
		}
		msg := <-batch.Messages()
		if msg == nil {
			if err := batch.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) && !errors.Is(err, jetstream.ErrNoMessages) {
				return soak.Work{}, false, fmt.Errorf("asking for work: %w", err)
			}
			none, err := s.none(ctx)
			if err != nil || none {
				return soak.Work{}, false, err
			}
			continue
		}
		w, free, err := s.look(ctx, msg)
		if err != nil {
			return soak.Work{}, false, err
		}
		if free {
			return w, true, nil
		}
	}
	return soak.Work{}, false, nil
}

// none reports whether every context is retired.
func (s *share) none(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, call)
	defer cancel()
	st, err := s.bus.js.Stream(ctx, s.bus.stream(work))
	if err != nil {
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return true, nil // the host has ended the run
		}
		return false, fmt.Errorf("looking for work: %w", err)
	}
	return st.CachedInfo().State.Msgs == 0, nil
}

// look finds out how far the context of a message is. A message that comes for the first time has nothing behind it.
func (s *share) look(ctx context.Context, msg jetstream.Msg) (soak.Work, bool, error) {
	n, err := strconv.ParseInt(msg.Subject()[strings.LastIndexByte(msg.Subject(), '.')+1:], 10, 64)
	if err != nil || n < 0 {
		return soak.Work{}, false, fmt.Errorf("a message of the work queue has the subject %q", msg.Subject())
	}
	h := &hold{msg: msg}
	w := soak.Work{Context: n}
	meta, err := msg.Metadata()
	if err != nil {
		return soak.Work{}, false, err
	}
	if meta.NumDelivered > 1 {
		retired, err := s.past(ctx, h, &w)
		if err != nil {
			return soak.Work{}, false, fmt.Errorf("context %d: %w", n, err)
		}
		if retired { // its process died between its last row and saying so
			return soak.Work{}, false, s.ack(msg)
		}
	}
	s.mu.Lock()
	s.held[n] = h
	s.mu.Unlock()
	return w, true, nil
}

// past reads what another process has done of a context.
func (s *share) past(ctx context.Context, h *hold, w *soak.Work) (retired bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, call)
	defer cancel()
	last, err := s.lastOf(ctx, rows, rowsWord, w.Context)
	if err != nil {
		return false, err
	}
	if last != nil {
		var row ledger.Row
		if _, err := ledger.UnmarshalCanonical(last.Data, &row, nil); err != nil {
			return false, fmt.Errorf("the last row: %w", err)
		}
		h.last, w.Attempts = last.Sequence, row.Attempt
		if w.Tries, err = strconv.ParseInt(last.Header.Get(headerTries), 10, 64); err != nil {
			return false, fmt.Errorf("the last row's header: %w", err)
		}
		if last.Header.Get(headerRetired) == "1" {
			return true, nil
		}
	}
	opened, err := s.lastOf(ctx, open, openWord, w.Context)
	if err != nil {
		return false, err
	}
	w.Resent = opened != nil && string(opened.Data) == strconv.FormatInt(w.Attempts+1, 10)
	return false, nil
}

// lastOf returns the last message of a context's subject, nil where there is none.
func (s *share) lastOf(ctx context.Context, kind, word string, n int64) (*jetstream.RawStreamMsg, error) {
	st, err := s.bus.js.Stream(ctx, s.bus.stream(kind))
	if err != nil {
		return nil, err
	}
	m, err := st.GetLastMsgForSubject(ctx, s.bus.subject(word, n))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	return m, err
}

func (s *share) ack(msg jetstream.Msg) error {
	ctx, cancel := context.WithTimeout(context.Background(), call)
	defer cancel()
	if err := msg.DoubleAck(ctx); err != nil {
		return fmt.Errorf("saying that a context is retired: %w", err)
	}
	return nil
}

// Open notes an attempt before it is sent.
func (s *share) Open(n, attempt int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), call)
	defer cancel()
	if _, err := s.bus.js.Publish(ctx, s.bus.subject(openWord, n), strconv.AppendInt(nil, attempt, 10)); err != nil {
		return fmt.Errorf("noting an open attempt: %w", err)
	}
	return nil
}

// Row publishes a row if no other process has gone on with its context.
func (s *share) Row(row ledger.Row, tries int64, retired bool) error {
	s.mu.Lock()
	h := s.held[row.Context]
	s.mu.Unlock()
	if h == nil {
		return soak.ErrLost
	}
	if err := row.Check(); err != nil {
		return fmt.Errorf("row of context %d: %w", row.Context, err)
	}
	b, err := ledger.Marshal(&row)
	if err != nil {
		return err
	}
	msg := nats.NewMsg(s.bus.subject(rowsWord, row.Context))
	msg.Data = b
	msg.Header.Set(headerTries, strconv.FormatInt(tries, 10))
	if retired {
		msg.Header.Set(headerRetired, "1")
	}
	ctx, cancel := context.WithTimeout(context.Background(), call)
	defer cancel()
	ack, err := s.bus.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(h.last), jetstream.WithMsgID(fmt.Sprintf("%d.%d.%d", row.Segment, row.Context, row.Attempt)))
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		s.mu.Lock()
		delete(s.held, row.Context)
		s.mu.Unlock()
		return soak.ErrLost
	}
	if err != nil {
		return fmt.Errorf("publishing a row: %w", err)
	}
	h.last = ack.Sequence
	return nil
}

// Release ends the hold on a context.
func (s *share) Release(n int64, retired bool) error {
	s.mu.Lock()
	h := s.held[n]
	delete(s.held, n)
	s.mu.Unlock()
	if h == nil {
		return nil
	}
	if retired {
		return s.ack(h.msg)
	}
	return h.msg.Nak()
}

// line is a sample or an event of a member on its way to the host.
type line struct {
	Segment  int64            `json:"segment"`
	Resource *ledger.Resource `json:"resource,omitempty"`
	Event    *ledger.Event    `json:"event,omitempty"`
	Gone     bool             `json:"gone,omitempty"` // the member's last
}

func (b *bus) sendLine(l line) error {
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), call)
	defer cancel()
	if _, err := b.js.Publish(ctx, b.subject(linesWord, l.Segment), data); err != nil {
		return fmt.Errorf("sending a line to the host: %w", err)
	}
	return nil
}

// tempDir is where an embedded server keeps its streams.
func tempDir() (string, error) { return os.MkdirTemp("", "cotenant-queue-") }
