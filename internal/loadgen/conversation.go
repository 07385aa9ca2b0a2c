package loadgen

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// Conversations is a Source whose contexts have several turns over one shared base, and which can spoil that base.
type Conversations interface {
	Source
	// Turn returns what a context is asked in a turn, turns counting from 0: the base and this turn's question. What was said in the
	// turns before stands between the two in a request. Turn 0 is Task.
	Turn(context, turn int64) Task
	// Canary returns the n-th question of a canary over a base, Base's or BadBase's: one whose answer only Base holds.
	Canary(n int64, base string) Task
	// BadBase returns Base with what the answers come from left out.
	BadBase() string
}

// Further streams of a seed.
const (
	streamTurn   = 3
	streamCanary = 4
)

// Turn returns the question of a turn. Kinds take turns from one turn of a context to the next as they do between neighbours.
func (w *Workload) Turn(context, turn int64) Task {
	if turn == 0 {
		return w.Task(context)
	}
	reg := w.register(context)
	r := rand.New(rand.NewPCG(mix(w.opts.Seed^streamTurn<<56), mix(uint64(context))^mix(uint64(turn)+1<<32)))
	t := reg.question(r, Kinds[int(uint64(context+turn)%uint64(len(Kinds)))])
	t.Context = context
	return t
}

// Canary looks an entry up in the list of the shared base.
func (w *Workload) Canary(n int64, base string) Task {
	t := w.base.question(w.rand(streamCanary, n), Lookup)
	t.Messages = slices.Clone(t.Messages)
	t.Messages[0].Content = base
	return t
}

// BadBase is the shared base without the lines of its list.
func (w *Workload) BadBase() string {
	text := w.base.text
	for i, name := range w.base.names {
		text = strings.Replace(text, fmt.Sprintf("\n%s %d\n", name, w.base.values[i]), "\n", 1)
	}
	return text
}
