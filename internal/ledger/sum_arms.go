package ledger

// armState folds the rows of paired contexts.
type armState struct {
	seed           string
	shared, unique arm
	single         map[int64]armTimes // results whose pair's other context has none so far, by pair
	pairs          int64
	ttft, latency  times
}

type arm struct {
	sum           ArmSum
	ttft, latency times
}

type armTimes struct {
	ttft    Opt
	latency int64
}

func newArmState(cfg *Config) *armState {
	return &armState{seed: cfg.Workload.Seed, single: map[int64]armTimes{}}
}

func (s *armState) of(context int64) *arm {
	if UniqueArm(s.seed, context) {
		return &s.unique
	}
	return &s.shared
}

func (s *armState) result(r *Row) {
	a := s.of(r.Context)
	a.sum.Results++
	a.sum.Prompt += r.PromptTokens.Or(0)
	if r.CachedTokens.OK {
		a.sum.Cached = Some(a.sum.Cached.Or(0) + r.CachedTokens.V)
	}
	a.ttft.between(r.SentUS, r.FirstTokenUS)
	a.latency.between(r.SentUS, Some(r.EndUS))
	own := armTimes{latency: r.EndUS - r.SentUS.V}
	if r.FirstTokenUS.OK {
		own.ttft = Some(r.FirstTokenUS.V - r.SentUS.V)
	}
	other, ok := s.single[r.Context/2]
	if !ok {
		s.single[r.Context/2] = own
		return
	}
	delete(s.single, r.Context/2)
	s.pairs++
	shared, unique := other, own
	if a == &s.shared {
		shared, unique = own, other
	}
	s.ttft.between(shared.ttft, unique.ttft)
	s.latency.add(unique.latency - shared.latency)
}

func (s *armState) sums() *PairedSum {
	for _, a := range []*arm{&s.shared, &s.unique} {
		a.sum.TTFT, a.sum.Latency = a.ttft.distribution(0), a.latency.distribution(0)
	}
	return &PairedSum{Pairs: s.pairs, Shared: s.shared.sum, Unique: s.unique.sum, TTFTDiff: s.ttft.distribution(0), LatencyDiff: s.latency.distribution(0)}
}
