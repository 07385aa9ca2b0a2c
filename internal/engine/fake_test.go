package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cotenant/internal/backend"
	"cotenant/internal/server"
	"cotenant/internal/tokenizer"
)

// testTokenizer has a token for each byte, some longer ones, and control tokens.
func testTokenizer(t testing.TB, addBOS bool) *tokenizer.Tokenizer {
	t.Helper()
	v := tokenizer.Vocab{Model: "gpt2", Pre: "gpt-2", BOS: bosID, EOS: eosID, EOT: -1, EOM: -1, AddBOS: &addBOS}
	for b := range 256 {
		v.Tokens = append(v.Tokens, string(byteRune(byte(b))))
		v.Types = append(v.Types, 1)
	}
	for _, literal := range []string{"<|begin|>", "<|im_end|>", "<|end|>"} {
		v.Tokens = append(v.Tokens, literal)
		v.Types = append(v.Types, 3)
	}
	tok, err := tokenizer.FromVocab(v)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

const (
	bosID = 256 + iota
	eosID
	controlID
	vocabSize
)

// byteRune is the character that stands for a byte in byte-level vocabularies (bytes_to_unicode of GPT-2).
func byteRune(b byte) rune {
	printable := func(c int) bool { return c >= '!' && c <= '~' || c >= 0xa1 && c <= 0xac || c >= 0xae && c <= 0xff }
	if printable(int(b)) {
		return rune(b)
	}
	n := rune(256)
	for c := range int(b) {
		if !printable(c) {
			n++
		}
	}
	return n
}

// Tokens that make the fake misbehave when they are in a sequence.
const (
	tokenNaN   = 1
	tokenError = 2
	tokenPanic = 3
)

// fakeModel computes, for each row, a hash of everything that the row's block table leads to, and from that its logits: a
// wrong page, slot, position or length changes the answer.
type fakeModel struct {
	ctx      int
	maxBatch int
	eosOdds  uint64                             // one row in so many prefers EOS; 0: none
	script   func(h uint64, position int) int32 // if set, the token that each row prefers by far
	gate     chan struct{}                      // if set, each Forward takes one
	device   *aheadModel                        // if set, what the engine gets: it chooses tokens itself

	once    sync.Once
	mu      sync.Mutex
	rows    int
	steps   int
	widest  int
	threads map[string]int
}

type fakeKV struct {
	cfg   backend.KVConfig
	slots []uint64
}

func (k *fakeKV) Config() backend.KVConfig { return k.cfg }
func (k *fakeKV) Bytes() int64             { return 8 * int64(len(k.slots)) }

func (m *fakeModel) NewKV(pageSize, pages int) (backend.KV, error) {
	m.note("kv")
	cfg := backend.KVConfig{Layers: 1, KVHeads: 1, HeadDim: 1, PageSize: pageSize, Pages: pages}
	return &fakeKV{cfg, make([]uint64, pageSize*pages)}, nil
}

func (m *fakeModel) KVBytesPerToken() int64 { return 8 }
func (m *fakeModel) ContextLength() int     { return m.ctx }
func (m *fakeModel) MaxBatchTokens() int    { return m.maxBatch }
func (m *fakeModel) EOS() []int32           { return []int32{eosID} }

func (m *fakeModel) note(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.threads == nil {
		m.threads = map[string]int{}
	}
	m.threads[what] = unix.Gettid()
}

// open lets every Forward pass from now on.
func (m *fakeModel) open() {
	if m.gate != nil {
		m.once.Do(func() { close(m.gate) })
	}
}

func mix(h, v uint64) uint64 {
	h ^= v + 0x9e3779b97f4a7c15
	h *= 0xff51afd7ed558ccd
	h ^= h >> 32
	return h
}

const padding = 3 // columns of logits beyond the tokenizer's vocabulary

func (m *fakeModel) Forward(kv backend.KV, b *backend.Batch, logits []float32) error {
	m.note("forward")
	if m.gate != nil {
		<-m.gate
	}
	k := kv.(*fakeKV)
	m.mu.Lock()
	m.rows += len(b.Tokens)
	m.steps++
	m.widest = max(m.widest, len(b.Seqs))
	m.mu.Unlock()
	for i, tok := range b.Tokens {
		switch tok {
		case tokenError:
			return errors.New("illegal address")
		case tokenPanic:
			panic("index out of range, as a bug would have it")
		}
		k.slots[b.Slots[i]] = mix(uint64(tok)+1, uint64(b.Positions[i]))
	}
	out := 0
	for _, s := range b.Seqs {
		for i := range s.Rows {
			row := s.Row + i
			if out == len(b.Outputs) || int(b.Outputs[out]) != row {
				continue
			}
			var h uint64
			bad := false
			for pos := range s.Past + i + 1 {
				v := k.slots[int(s.Pages[pos/k.cfg.PageSize])*k.cfg.PageSize+pos%k.cfg.PageSize]
				bad = bad || v == mix(tokenNaN+1, uint64(pos))
				h = mix(h, v)
			}
			m.fill(logits[out*(vocabSize+padding):(out+1)*(vocabSize+padding)], h, int(b.Positions[row]), bad)
			out++
		}
	}
	if out != len(b.Outputs) {
		return fmt.Errorf("%d of %d outputs belong to a sequence", out, len(b.Outputs))
	}
	return nil
}

func (m *fakeModel) fill(row []float32, h uint64, position int, bad bool) {
	for i := range row {
		row[i] = float32(mix(h, uint64(i))>>40) / (1 << 22) // 0 to 4
	}
	row[tokenNaN], row[tokenError], row[tokenPanic] = -50, -50, -50
	row[eosID] = -50
	if m.eosOdds > 0 && h%m.eosOdds == 0 {
		row[eosID] = 50
	}
	if m.script != nil {
		row[m.script(h, position)] = 60
	}
	for i := range padding {
		row[vocabSize+i] = 1000
	}
	if bad {
		row[h%vocabSize] = float32(math.NaN())
	}
}

func (m *fakeModel) Info() backend.Info { return backend.Info{Name: "cpu", Device: "a fake"} }

func (m *fakeModel) Memory() []backend.Memory {
	m.note("memory")
	return []backend.Memory{{Kind: "weights", Bytes: 100}, {Kind: "kv", Bytes: 7}}
}

func newFake() *fakeModel { return &fakeModel{ctx: 400, maxBatch: 512, eosOdds: 40} }

// newDevice is newFake, on which tokens are chosen where they are computed.
func newDevice() *fakeModel {
	m := newFake()
	m.device = &aheadModel{fakeModel: m}
	return m
}

// newEngine runs an engine on a fake. When the test ends the engine must be idle, hold no page and break no invariant.
func newEngine(t testing.TB, cfg Config, m *fakeModel) *Engine {
	t.Helper()
	before := runtime.NumGoroutine()
	e, err := New(cfg, func() (Runtime, error) {
		m.note("open")
		var model Model = m
		if m.device != nil {
			model = m.device
		}
		return Runtime{Model: model, Device: m, LogitsWidth: vocabSize + padding, Tokenizer: testTokenizer(t, false),
			Close: func() error { m.note("close"); return nil }}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.open()
		if e.Health() == nil {
			waitFor(t, "an idle engine", func() bool { return e.Stats().Slots == 0 && e.Stats().Running == 0 && e.Stats().Waiting == 0 })
			checkIdle(t, e)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		waitFor(t, "every goroutine to end", func() bool { return runtime.NumGoroutine() <= before })
	})
	return e
}

func checkIdle(t testing.TB, e *Engine) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.cache.CheckInvariants(); err != nil {
		t.Error(err)
	}
	if s := e.cache.Stats(); s.Used != 0 || s.Seqs != 0 || !e.sched.Idle() {
		t.Errorf("idle, and pages are held: %+v", s)
	}
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// output is everything that a choice gave.
type output struct {
	text, finish, stop string
	tokens, prompt     []server.Token
	usage              server.Usage
	chunks             int
}

func (o output) ids() (ids []int32) {
	for _, t := range o.tokens {
		ids = append(ids, t.ID)
	}
	return ids
}

func generate(e *Engine, prompt []int32, s server.Sampling) ([]output, error) {
	st, err := e.Generate(context.Background(), server.Prompt{Tokens: prompt}, s)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	return collect(st, max(s.N, 1))
}

func collect(st server.Stream, n int) ([]output, error) {
	outs := make([]output, n)
	for {
		c, err := st.Next(context.Background())
		if err == io.EOF {
			for i, o := range outs {
				if o.finish == "" {
					return outs, fmt.Errorf("choice %d has no end", i)
				}
			}
			return outs, nil
		}
		if err != nil {
			return outs, err
		}
		o := &outs[c.Index]
		if o.finish != "" {
			return outs, fmt.Errorf("choice %d goes on after its end", c.Index)
		}
		if c.Prompt != nil && (o.chunks > 0 || c.Index != 0) {
			return outs, fmt.Errorf("the prompt comes with chunk %d of choice %d", o.chunks, c.Index)
		}
		o.text += c.Text
		o.tokens = append(o.tokens, c.Tokens...)
		o.prompt = append(o.prompt, c.Prompt...)
		o.finish, o.stop, o.usage = c.FinishReason, c.StopReason, c.Usage
		o.chunks++
	}
}

func must(t testing.TB, e *Engine, prompt []int32, s server.Sampling) output {
	t.Helper()
	outs, err := generate(e, prompt, s)
	if err != nil {
		t.Fatal(err)
	}
	return outs[0]
}

// scripted makes a fake's answers follow a text, from the position behind a prompt of n tokens on; then EOS.
func scripted(text string, n int) func(uint64, int) int32 {
	return func(_ uint64, position int) int32 {
		if i := position - n + 1; i >= 0 && i < len(text) {
			return int32(text[i])
		}
		return eosID
	}
}

func ids(text string) []int32 {
	var out []int32
	for _, b := range []byte(text) {
		out = append(out, int32(b))
	}
	return out
}

func rep(s string, n int) []int32 { return ids(strings.Repeat(s, n)) }
