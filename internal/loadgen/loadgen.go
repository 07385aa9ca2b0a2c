// Package loadgen makes the work of a soak from explicit seeds: a shared base prompt, one task per logical context, and
// an oracle that knows each task's answer. It is pure: the same options give the same bytes on every machine.
package loadgen

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
)

// Version names the generator. It changes whenever the same options would give other bytes.
const Version = "cotenant-tasks-1"

// Bounds and default of Options.BaseTokens.
const (
	MinBaseTokens     = 160
	DefaultBaseTokens = 690
	MaxBaseTokens     = 1000
)

// Message is one chat message.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Source gives a soak its work. It is safe for concurrent use.
type Source interface {
	// Task returns the work of one logical context, contexts counting from 0.
	Task(context int64) Task
	// Base returns the bytes that all contexts share, empty where they share none.
	Base() string
	// Hash is the SHA-256 (hex) of what determines all tasks: equal hashes mean equal work.
	Hash() string
	// Name says where the work comes from, for people and for the ledger.
	Name() string
}

// Options determine a Workload.
type Options struct {
	Seed       uint64
	BaseTokens int  // about how many tokens the base has in a usual vocabulary; 0 means DefaultBaseTokens
	Unique     bool // a base of its own for each context, different from its first words on, so that no prefix can be reused
}

// Workload generates tasks over a register: a system message of about BaseTokens tokens that holds a list, and a user
// message with one question.
type Workload struct {
	opts Options
	base register // the shared one
}

// New checks the options and makes a workload.
func New(o Options) (*Workload, error) {
	if o.BaseTokens == 0 {
		o.BaseTokens = DefaultBaseTokens
	}
	if o.BaseTokens < MinBaseTokens || o.BaseTokens > MaxBaseTokens {
		return nil, fmt.Errorf("base of %d tokens: want %d to %d", o.BaseTokens, MinBaseTokens, MaxBaseTokens)
	}
	w := &Workload{opts: o}
	w.base = newRegister(w.rand(streamBase, 0), o.BaseTokens)
	return w, nil
}

// The independent random streams of a seed, so that a change to one draws nothing from another.
const (
	streamBase = iota + 1
	streamTask
)

func (w *Workload) rand(stream uint64, context int64) *rand.Rand {
	// SplitMix64's finaliser keeps neighbouring contexts apart; PCG's output is fixed by math/rand/v2's documentation.
	return rand.New(rand.NewPCG(mix(w.opts.Seed^stream<<56), mix(uint64(context)+stream)))
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Base returns the shared system message; empty for unique bases.
func (w *Workload) Base() string {
	if w.opts.Unique {
		return ""
	}
	return w.base.text
}

// Task returns the task of a context. Kinds take turns, so that every four neighbouring contexts hold one of each.
func (w *Workload) Task(context int64) Task {
	reg := w.register(context)
	t := reg.question(w.rand(streamTask, context), Kinds[int(uint64(context)%uint64(len(Kinds)))])
	t.Context = context
	return t
}

// register is a context's base.
func (w *Workload) register(context int64) register {
	if w.opts.Unique {
		return newRegister(w.rand(streamBase, context+1), w.opts.BaseTokens)
	}
	return w.base
}

// Name names the generator.
func (w *Workload) Name() string { return Version }

// Hash covers the generator's version, its options and the shared base.
func (w *Workload) Hash() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\nseed=%d\nbase_tokens=%d\nunique=%t\n%s", Version, w.opts.Seed, w.opts.BaseTokens, w.opts.Unique, w.Base())
	return hex.EncodeToString(h.Sum(nil))
}
