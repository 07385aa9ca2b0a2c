package engine

import (
	"slices"

	"cotenant/internal/backend"
)

// mostBans bounds the tokens that a device is told to rule out: with that many left out something is left to choose.
const mostBans = 256

// remote says how a device is to choose the position-th token of the answer as next would. It can't where log-probabilities are
// wanted.
func (p *sampler) remote(position int) (backend.Draw, bool) {
	if p.top >= 0 {
		return backend.Draw{}, false
	}
	d := backend.Draw{
		Temperature: p.temperature, TopP: p.topP, MinP: p.minP, TopK: int32(p.topK),
		Seed: p.seed, Choice: int32(p.choice), Position: int32(position),
		Repetition: p.repetition, Frequency: p.frequency, Presence: p.presence,
	}
	bans := p.ends
	if position >= p.minTokens {
		bans = nil
	}
	if len(bans) > mostBans {
		return d, false
	}
	if len(bans)+len(p.bias)+len(p.seen) == 0 {
		return d, true
	}
	p.changes = p.changes[:0]
	for _, s := range p.seen {
		p.changes = append(p.changes, backend.Adjustment{ID: s.id, Seen: true, Count: s.count})
	}
	for _, b := range p.bias {
		p.change(b.id).Bias = b.weight
	}
	for _, id := range bans {
		p.change(id).Ban = true
	}
	d.Adjust = p.changes
	return d, true
}

// change returns what is to be done to a token's logit, behind those that were seen.
func (p *sampler) change(id int32) *backend.Adjustment {
	at, ok := p.index[id]
	i := int(at)
	if !ok {
		i = slices.IndexFunc(p.changes[len(p.seen):], func(a backend.Adjustment) bool { return a.ID == id })
		if i += len(p.seen); i < len(p.seen) {
			i = len(p.changes)
			p.changes = append(p.changes, backend.Adjustment{ID: id})
		}
	}
	return &p.changes[i]
}

// chose notes a token of the answer.
func (p *sampler) chose(id int32) {
	if p.index != nil {
		p.see(id, 1)
	}
}
