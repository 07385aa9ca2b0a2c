// Package engine generates text: it queues requests, batches them continuously over one model, samples tokens and streams
// them back. It implements server.Generator.
//
// One goroutine, locked to one OS thread for its whole life (a CUDA context belongs to a thread), makes the model, runs
// its steps and closes it. A step is: schedule, forward pass, sample, hand out. Everything that a token needs besides (text,
// stop strings, chunks) happens in a goroutine of its request, while the next step runs.
//
// Who guards what:
//
//	Engine.mu    scheduler, page books, the set of live requests, counters. Held shortly, never during a forward pass.
//	request.mu   what the loop hands to the request's goroutine, and that to the reader of its stream
//	the loop     model, backend, logits, samplers; no lock
//
// A request ends exactly once: with every choice finished, with an error, or cancelled. Cancelling frees its pages before
// the next step.
//
// An error of the model or backend, or a panic in the loop, is latched: everything fails with server.ErrUnavailable from
// then on, and Health returns it for ever. A row of logits that isn't finite ends its request alone.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"cotenant/internal/backend"
	"cotenant/internal/kvcache"
	"cotenant/internal/scheduler"
	"cotenant/internal/server"
)

// Config sizes an Engine. Zero fields take the defaults.
type Config struct {
	ID      string    // served name
	Created time.Time // what /v1/models says; the time of New where zero

	MaxSeqs        int // sequences computed at once; 8
	MaxBatchTokens int // rows in a step; 256, or what the model takes if that is less
	PageSize       int // tokens in a KV page; kvcache.DefaultPageSize
	// KVMemory is the bytes for keys and values; 256 MiB, or on a device whose memory others share what that says is free. What it
	// holds also bounds the context length, so that
	// every request that is taken can be finished.
	KVMemory int64
	// ContextLength is the most tokens of prompt and answer together; the model's own, or what KVMemory holds, if that is less.
	ContextLength int
	// What may wait beyond MaxSeqs: choices of requests, and tokens of their prompts. 256 and 1 Mi; negative: none.
	QueueSeqs, QueueTokens int

	Log *slog.Logger // nil: nothing is logged
}

const (
	defaultMaxSeqs     = 8
	defaultBatchTokens = 256
	defaultKVMemory    = 256 << 20
	defaultQueueSeqs   = 256
	defaultQueueTokens = 1 << 20
	// Rows of logits that a step may ask for beyond one a sequence, for the log-probabilities of prompts: 16 MiB of them.
	promptLogitsBytes = 16 << 20
)

// Engine serves one model. It is safe for concurrent use.
type Engine struct {
	cfg   Config
	rt    Runtime // the loop's, but for what is immutable
	info  server.ModelInfo
	host  backend.Info
	vocab int // ids that may be chosen: below what the model's rows hold where those are padded
	start time.Time
	done  chan struct{} // closed when the loop has ended
	wake  chan struct{} // capacity 1: there is something to do

	mu       sync.Mutex
	cache    *kvcache.Cache
	sched    *scheduler.Scheduler
	live     map[*request]struct{}
	cancels  []*choice
	failed   error // latched
	draining bool
	closing  bool
	empty    chan struct{} // closed when nothing is admitted any more and nothing is live
	isEmpty  bool          // it is closed
	counts   counters
	memory   []backend.Memory
	closeErr error

	generated atomic.Uint64

	// The loop's own.
	kv      backend.KV
	batch   backend.Batch
	logits  []float32
	chooser chooser        // nil: the host chooses
	draws   []backend.Draw // of a step whose tokens the device chooses
	ids     []int32
	flight  *scheduler.Plan // a step that runs on the device; its tokens are not known yet
	bench   bench
	results []result
	checked time.Time // when memory was read last
}

// New makes an engine. open is called on the engine's thread and makes what it computes with; its Close is called there too.
// An error of open is returned as it is.
func New(cfg Config, open func() (Runtime, error)) (*Engine, error) {
	e := &Engine{cfg: cfg, start: time.Now(), done: make(chan struct{}), wake: make(chan struct{}, 1),
		live: map[*request]struct{}{}, empty: make(chan struct{})}
	if e.cfg.Log == nil {
		e.cfg.Log = slog.New(slog.DiscardHandler)
	}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer close(e.done)
		rt, err := open()
		if err == nil {
			e.rt = rt
			if err = e.guard(e.setUp); err != nil {
				err = errors.Join(err, rt.close())
			}
		}
		ready <- err
		if err == nil {
			e.loop()
		}
	}()
	if err := <-ready; err != nil {
		<-e.done
		return nil, err
	}
	return e, nil
}

// setUp sizes everything by the model. It runs on the loop's thread.
func (e *Engine) setUp() error {
	c, m := &e.cfg, e.rt.Model
	if c.MaxSeqs == 0 {
		c.MaxSeqs = min(defaultMaxSeqs, m.MaxBatchTokens())
	}
	if c.MaxSeqs > m.MaxBatchTokens() {
		return fmt.Errorf("engine: %d sequences at once, the model takes %d; give fewer with --max-seqs", c.MaxSeqs, m.MaxBatchTokens())
	}
	if c.MaxBatchTokens == 0 {
		c.MaxBatchTokens = max(c.MaxSeqs, min(defaultBatchTokens, m.MaxBatchTokens()))
	}
	if c.MaxBatchTokens > m.MaxBatchTokens() {
		return fmt.Errorf("engine: %d tokens a step, the model takes %d", c.MaxBatchTokens, m.MaxBatchTokens())
	}
	if c.PageSize == 0 {
		c.PageSize = kvcache.DefaultPageSize
	}
	if err := e.sizeKV(); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	c.QueueSeqs = bound(c.QueueSeqs, defaultQueueSeqs)
	c.QueueTokens = bound(c.QueueTokens, defaultQueueTokens)
	if c.Created.IsZero() {
		c.Created = e.start
	}
	if c.PageSize < 1 || c.KVMemory < 1 || c.ContextLength < 0 {
		return fmt.Errorf("engine: pages of %d tokens in %d bytes for a context of %d", c.PageSize, c.KVMemory, c.ContextLength)
	}
	page := m.KVBytesPerToken() * int64(c.PageSize)
	if page < 1 || c.KVMemory < page {
		return fmt.Errorf("engine: %d bytes of KV memory don't hold one page of %d tokens (%d bytes); give more with --kv-memory",
			c.KVMemory, c.PageSize, page)
	}
	// No more than every sequence can use at its longest, and then half as much for prefixes.
	longest := int64(m.ContextLength()+c.PageSize-1) / int64(c.PageSize)
	pages := int(min(c.KVMemory/page, longest*int64(c.MaxSeqs)*3/2, int64(1<<31-1)/int64(c.PageSize)))
	if c.ContextLength > m.ContextLength() {
		return fmt.Errorf("engine: a context of %d tokens, the model's is %d", c.ContextLength, m.ContextLength())
	}
	if room := pages * c.PageSize; c.ContextLength > room {
		return fmt.Errorf("engine: a context of %d tokens, %d bytes of KV memory hold %d; give more with --kv-memory",
			c.ContextLength, c.KVMemory, room)
	} else if c.ContextLength == 0 {
		c.ContextLength = min(m.ContextLength(), room)
	}

	e.host = e.rt.Device.Info()
	e.vocab = min(e.rt.Tokenizer.VocabSize(), e.rt.LogitsWidth)
	e.info = server.ModelInfo{ID: c.ID, Created: c.Created, ContextLength: c.ContextLength, VocabSize: e.vocab}
	var err error
	if e.cache, err = kvcache.New(kvcache.Config{Pages: pages, PageSize: c.PageSize}); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	e.sched, err = scheduler.New(scheduler.Config{
		MaxSeqs: c.MaxSeqs, MaxTokens: c.MaxBatchTokens,
		MaxOutputs: c.MaxSeqs + promptLogitsBytes/(4*e.rt.LogitsWidth),
		QueueSeqs:  c.QueueSeqs, QueueTokens: c.QueueTokens,
	}, e.cache)
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	if e.kv, err = m.NewKV(c.PageSize, pages); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	if s, ok := m.(chooser); ok && s.Draws() >= c.MaxSeqs {
		e.chooser = s
	}
	e.counts = newCounters()
	e.readMemory()
	return nil
}

// sizeKV sets Config.KVMemory where it is to be found out.
func (e *Engine) sizeKV() (err error) {
	if e.cfg.KVMemory != 0 {
		return nil
	}
	e.cfg.KVMemory = defaultKVMemory
	if b, ok := e.rt.Device.(backend.Budgeter); ok {
		e.cfg.KVMemory, err = b.KVBudget()
	}
	return err
}

// bound reads a limit of Config: 0 is the default, negative is none.
func bound(n, normal int) int {
	if n == 0 {
		return normal
	}
	return max(n, 0)
}

// now is the engine's clock.
func (e *Engine) now() time.Duration { return time.Since(e.start) }

// nudge wakes the loop where it sleeps.
func (e *Engine) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Health implements server.Generator: nil, or the latched error for ever.
func (e *Engine) Health() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failed
}

// Drain stops admission for good and waits for what was admitted; when ctx is done it cancels the rest, which end with
// server.ErrUnavailable. The error says how many were cut. It may be called again.
func (e *Engine) Drain(ctx context.Context) error {
	e.mu.Lock()
	e.stopAdmission()
	e.mu.Unlock()
	select {
	case <-e.empty:
		return nil
	case <-ctx.Done():
	}
	e.mu.Lock()
	cut := e.cancelAll()
	e.mu.Unlock()
	select {
	case <-e.empty:
	case <-time.After(stepPatience):
		return fmt.Errorf("drain: %d requests are held by a step that doesn't end", cut)
	}
	if cut > 0 {
		return fmt.Errorf("drain: %d requests were cut after the grace period", cut)
	}
	return nil
}

// stepPatience is how long Drain waits for the step that runs when its grace period ends.
const stepPatience = 10 * time.Second

// stopAdmission needs e.mu.
func (e *Engine) stopAdmission() {
	e.draining = true
	e.signalEmpty()
}

// signalEmpty needs e.mu.
func (e *Engine) signalEmpty() {
	if e.draining && len(e.live) == 0 && !e.isEmpty {
		e.isEmpty = true
		close(e.empty)
	}
}

// cancelAll ends every live request, as unavailable, and returns how many there were. It needs e.mu.
func (e *Engine) cancelAll() int {
	for r := range e.live {
		r.fail(errShutdown)
		e.cancels = append(e.cancels, r.choices...)
	}
	e.nudge()
	return len(e.live)
}

var errShutdown = fmt.Errorf("%w: it is shutting down", server.ErrUnavailable)

// cancel takes choices out before the next step.
func (e *Engine) cancel(choices ...*choice) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range choices {
		if !c.ended {
			e.cancels = append(e.cancels, c)
		}
	}
	e.nudge()
}

// Close cancels what is live, ends the loop and closes the runtime. Calling it again returns the same.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.stopAdmission()
	e.closing = true
	e.cancelAll()
	e.mu.Unlock()
	<-e.done
	return e.closeErr
}

// latch fails everything for ever; err is what Health says.
func (e *Engine) latch(err error) {
	e.cfg.Log.Error("device error: no more requests are served", "error", err)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failed = err
	for r := range e.live {
		r.fail(unavailable(err))
	}
	e.endAll()
}

func unavailable(err error) error {
	return fmt.Errorf("%w: device error: %w", server.ErrUnavailable, err)
}

// guard calls f; a panic becomes an error, and its stack is logged.
func (e *Engine) guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			e.cfg.Log.Error("panic in the engine", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("internal error: panic in the engine: %v", p)
		}
	}()
	return f()
}
