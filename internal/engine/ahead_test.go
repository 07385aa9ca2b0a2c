package engine

import (
	"errors"
	"fmt"

	"cotenant/internal/backend"
	"cotenant/internal/server"
)

// aheadModel is a fakeModel that chooses tokens itself, as a device does: Start computes nothing before its tokens are known to it,
// and tells nobody before Wait.
type aheadModel struct {
	*fakeModel
	latest []int32   // choices of the latest Start
	away   [][]int32 // of those without a Wait
	ahead  int       // how often a step was started while another one was away
}

func (m *aheadModel) Draws() int { return m.maxBatch }

func (m *aheadModel) Start(kv backend.KV, b *backend.Batch, vocab int, draws []backend.Draw) error {
	if len(draws) != len(b.Outputs) || len(m.away) > 1 {
		return fmt.Errorf("%d draws for %d outputs, %d steps are away", len(draws), len(b.Outputs), len(m.away))
	}
	own := *b
	own.Tokens = append([]int32(nil), b.Tokens...)
	for i, t := range own.Tokens {
		if t < 0 {
			own.Tokens[i] = max(m.latest[^t], 0)
		}
	}
	const width = vocabSize + padding
	logits := make([]float32, len(b.Outputs)*width)
	if err := m.Forward(kv, &own, logits); err != nil {
		return err
	}
	ids := make([]int32, len(draws))
	for i, d := range draws {
		ids[i] = choose(logits[i*width:i*width+vocab], d)
	}
	m.latest = ids
	if len(ids) > 0 {
		if len(m.away) > 0 {
			m.ahead++
		}
		m.away = append(m.away, ids)
	}
	return nil
}

func (m *aheadModel) Wait(ids []int32) error {
	if len(m.away) == 0 {
		return errors.New("nothing is away")
	}
	copy(ids, m.away[0])
	m.away = m.away[1:]
	return nil
}

// choose is the host's sampler told by a Draw.
func choose(row []float32, d backend.Draw) int32 {
	s := server.Sampling{Temperature: d.Temperature, TopP: d.TopP, MinP: d.MinP, TopK: int(d.TopK), PresencePenalty: d.Presence,
		FrequencyPenalty: d.Frequency, RepetitionPenalty: d.Repetition, LogitBias: map[int32]float32{}}
	var ends []int32
	p := newSampler(&s, nil, nil, int(d.Choice), d.Seed)
	for _, a := range d.Adjust {
		if a.Ban {
			ends = append(ends, a.ID)
		}
		if a.Bias != 0 {
			p.bias = append(p.bias, candidate{a.Bias, a.ID})
		}
		if a.Seen {
			p.see(a.ID, a.Count)
		}
	}
	p.ends, p.minTokens = ends, int(d.Position)+1
	got, err := p.next(row, int(d.Position), &bench{})
	if err != nil {
		return -1
	}
	return got.id
}
