package loadgen

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// PairsVersion names the generator of pairs.
const PairsVersion = "cotenant-pairs-1"

// Pairs is a workload whose contexts 2k and 2k+1 ask the same question, one over the base that all pairs share and one over a base
// that differs from it in its first line alone, by a word of the context's own: no prefix of it can be reused beyond what a chat
// template and the first word bring, and all else, length, list and answer, is the same.
type Pairs struct {
	work *Workload
	seed string // decimal
}

// NewPairs makes pairs of a workload with a shared base.
func NewPairs(o Options) (*Pairs, error) {
	if o.Unique {
		return nil, fmt.Errorf("pairs have both a shared base and unique ones")
	}
	w, err := New(o)
	if err != nil {
		return nil, err
	}
	return &Pairs{w, fmt.Sprint(o.Seed)}, nil
}

// UniqueArm reports whether a context is the one of its pair with a base of its own: in pair k the first, if the lowest bit of the last
// byte of SHA-256("cotenant-pairs-1", line feed, seed, line feed, k in decimal digits) is 1, else the second.
func UniqueArm(seed string, context int64) bool {
	h := sha256.Sum256(fmt.Appendf(nil, "cotenant-pairs-1\n%s\n%d", seed, context/2))
	return (context%2 == 0) == (h[len(h)-1]&1 == 1)
}

// Task returns the question of a context's pair over its arm's base.
func (p *Pairs) Task(context int64) Task {
	t := p.work.Task(context / 2)
	t.Context = context
	if UniqueArm(p.seed, context) {
		_, rest, _ := strings.Cut(p.work.base.text, "\n")
		word := codeWord(p.work.rand(streamArm, context))
		t.Messages = []Message{{t.Messages[0].Role, fmt.Sprintf("Register %s of %d.\n%s", word, context, rest)}, t.Messages[1]}
	}
	return t
}

// streamArm is a further stream of a seed.
const streamArm = 5

// Base is what the shared arm's contexts share.
func (p *Pairs) Base() string { return p.work.Base() }

// Name names the generator.
func (p *Pairs) Name() string { return PairsVersion }

// Hash covers the workload and that it comes in pairs.
func (p *Pairs) Hash() string {
	h := sha256.Sum256([]byte(PairsVersion + "\n" + p.work.Hash()))
	return hex.EncodeToString(h[:])
}
