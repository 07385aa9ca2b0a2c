package engine

import (
	"errors"
	"math"
	"slices"

	"cotenant/internal/backend"
	"cotenant/internal/server"
)

// errNonFinite is what a row of logits with NaN or infinity ends its request with.
var errNonFinite = errors.New("the model's logits are not finite")

// sampler chooses the tokens of one choice. What it does to a row of logits, in this order (vLLM's):
//
//  1. min_tokens: tokens that would end the answer too soon are ruled out; logit_bias is added
//  2. repetition penalty (prompt and answer), then frequency and presence penalty (answer)
//  3. temperature 0: the largest logit, the lowest id where several are equal; done
//  4. temperature
//  5. min_p, relative to the most likely token
//  6. top_k
//  7. top_p of what top_k left: the fewest most likely tokens that reach it, at least one
//  8. a draw with the number that seed, choice and place in the answer stand for (see uniform)
//
// Log-probabilities are those of the model: before all of this.
type sampler struct {
	temperature, topP, minP         float32
	topK                            int
	presence, frequency, repetition float32
	bias                            []candidate // weights are added
	ends                            []int32     // tokens that end the answer
	minTokens                       int
	seed                            uint64
	choice                          int
	top                             int // alternatives with log-probabilities; -1: none wanted, not even the token's own

	// What was seen, where a penalty needs it: each token once.
	seen  []seenToken
	index map[int32]int32 // its place in seen

	changes []backend.Adjustment // of remote, used again
}

type seenToken struct {
	id    int32
	count int32 // in the answer
}

func newSampler(s *server.Sampling, prompt, ends []int32, choice int, seed uint64) *sampler {
	p := &sampler{
		temperature: s.Temperature, topP: s.TopP, minP: s.MinP, topK: s.TopK,
		presence: s.PresencePenalty, frequency: s.FrequencyPenalty, repetition: s.RepetitionPenalty,
		ends: ends, minTokens: s.MinTokens, seed: seed, choice: choice, top: -1,
	}
	if p.topP == 0 {
		p.topP = 1
	}
	if p.repetition == 0 {
		p.repetition = 1
	}
	if s.Logprobs {
		p.top = s.TopLogprobs
	}
	for id, v := range s.LogitBias {
		p.bias = append(p.bias, candidate{v, id})
	}
	if p.presence != 0 || p.frequency != 0 || p.repetition != 1 {
		p.index = map[int32]int32{}
		if p.repetition != 1 {
			for _, id := range prompt {
				p.see(id, 0)
			}
		}
	}
	return p
}

func (p *sampler) see(id, count int32) {
	at, ok := p.index[id]
	if !ok {
		at = int32(len(p.seen))
		p.index[id] = at
		p.seen = append(p.seen, seenToken{id: id})
	}
	p.seen[at].count += count
}

// scored is a token with its log-probability and the likeliest alternatives.
type scored struct {
	id      int32
	logprob float32
	top     []candidate // weights are log-probabilities
}

// bench is memory that all samplers of an engine share: rows go through one after the other.
type bench struct {
	weights []float32
	cands   []candidate
	undo    []candidate
}

func (b *bench) room(n int) []float32 {
	if cap(b.weights) < n {
		b.weights = make([]float32, n)
	}
	return b.weights[:n]
}

// next chooses the position-th token (from 0) of the answer from its row of logits, which it may change. It allocates
// nothing unless log-probabilities are wanted or the answer has a token for the first time.
func (p *sampler) next(row []float32, position int, b *bench) (scored, error) {
	best, finite := argmax(row)
	if !finite {
		return scored{}, errNonFinite
	}
	b.undo = b.undo[:0]
	raw := best
	p.adjust(row, position, b)
	if len(b.undo) > 0 {
		if best, _ = argmax(row); math.IsInf(float64(row[best]), -1) {
			best = raw // every token is ruled out: none is
		}
	}
	id := int32(best)
	if p.temperature > 0 {
		id = p.draw(row, row[best], uniform(p.seed, p.choice, position), b)
	}
	p.chose(id)
	if p.top < 0 {
		return scored{id: id}, nil
	}
	for i := len(b.undo) - 1; i >= 0; i-- {
		row[b.undo[i].id] = b.undo[i].weight
	}
	return score(row, row[raw], id, p.top, b), nil
}

// largestLogit keeps what penalties make of a logit finite.
const largestLogit = 1e30

// adjust applies steps 1 and 2, and notes what it changed.
func (p *sampler) adjust(row []float32, position int, b *bench) {
	if position < p.minTokens {
		for _, id := range p.ends {
			b.undo = append(b.undo, candidate{row[id], id})
			row[id] = float32(math.Inf(-1))
		}
	}
	for _, c := range p.bias {
		b.undo = append(b.undo, candidate{row[c.id], c.id})
		row[c.id] += c.weight
	}
	for _, s := range p.seen {
		v := row[s.id]
		b.undo = append(b.undo, candidate{v, s.id})
		if v > 0 {
			v /= p.repetition
		} else {
			v *= p.repetition
		}
		if s.count > 0 {
			v -= p.frequency*float32(s.count) + p.presence
		}
		row[s.id] = min(max(v, -largestLogit), largestLogit)
	}
}

// draw chooses a token by steps 4 to 8; u is uniform in [0, 1).
func (p *sampler) draw(row []float32, top float32, u float64, b *bench) int32 {
	w := b.room(len(row))
	sum := expAll(w, row, top, min(1/p.temperature, math.MaxFloat32))
	if p.minP == 0 && p.topK == 0 && p.topP >= 1 {
		u *= sum
		last := 0
		for i, e := range w {
			if e == 0 {
				continue
			}
			if last = i; u < float64(e) {
				break
			}
			u -= float64(e)
		}
		return int32(last)
	}
	c := p.filter(w, sum, b)
	sum = 0
	for _, v := range c {
		sum += float64(v.weight)
	}
	u *= sum
	for _, v := range c[:len(c)-1] {
		if u < float64(v.weight) {
			return v.id
		}
		u -= float64(v.weight)
	}
	return c[len(c)-1].id
}

// filter returns the candidates that steps 5 to 7 leave of weights w, whose largest is 1.
func (p *sampler) filter(w []float32, sum float64, b *bench) []candidate {
	const fewCandidates = 64 // for which keeping a sorted list is the fastest
	c := b.cands[:0]
	mass := 0.0 // of what top_p is a share of
	switch {
	case p.topK > 0 && p.topK <= fewCandidates:
		c = largest(c, w, p.topK)
		c = slices.DeleteFunc(c, func(v candidate) bool { return v.weight < p.minP })
	case p.topK > 0:
		c = atLeast(c, w, p.minP)
	default:
		// Tokens that have less than (1-topP)/V of the mass have less than 1-topP of it together, so they aren't in the
		// nucleus. It spares most of the work on usual rows.
		if mass = sum; p.minP > 0 {
			mass = 0
			for _, e := range w {
				if e >= p.minP {
					mass += float64(e)
				}
			}
		}
		c = atLeast(c, w, max(p.minP, float32((1-float64(p.topP))*mass/float64(len(w))*0.999)))
	}
	if cap(c) > cap(b.cands) {
		b.cands = c
	}
	if p.topK > 0 {
		c = topCount(c, p.topK)
		for _, v := range c {
			mass += float64(v.weight)
		}
	}
	if p.topP < 1 {
		c = topMass(c, mass*float64(p.topP))
	}
	return c
}

// atLeast appends the candidates of weight least or more, and more than 0, to c.
func atLeast(c []candidate, w []float32, least float32) []candidate {
	for i, e := range w {
		if e >= least && e > 0 {
			c = append(c, candidate{e, int32(i)})
		}
	}
	return c
}

// leastLogprob stands for what has no log-probability in JSON: minus infinity.
const leastLogprob = -9999

// score returns the log-probabilities of id and of the n likeliest tokens in a row of logits whose largest is top.
func score(row []float32, top float32, id int32, n int, b *bench) scored {
	sum := float64(top) + math.Log(expAll(b.room(len(row)), row, top, 1))
	logprob := func(v float32) float32 { return float32(max(float64(v)-sum, leastLogprob)) }
	s := scored{id: id, logprob: logprob(row[id])}
	if n > 0 {
		b.cands = largest(b.cands, row, n)
		s.top = slices.Clone(b.cands)
		for i := range s.top {
			s.top[i].weight = logprob(s.top[i].weight)
		}
	}
	return s
}

// scorePrompt is score for a prompt's token, which nobody chooses.
func scorePrompt(row []float32, id int32, n int, b *bench) (scored, error) {
	best, finite := argmax(row)
	if !finite {
		return scored{}, errNonFinite
	}
	return score(row, row[best], id, n, b), nil
}
