package ledger

// cutTurn is what a turn's attempts that were cut can have left on the server, until the turn's result says how long its prompt is.
type cutTurn struct {
	maybe int64 // attempts that the server may have counted
	sure  int64 // of them, those that it has: they brought a token
}

// bounds are what the server can have counted beyond the rows with usage.
type bounds struct {
	results                     int64 // attempts answered whole
	cut                         int64 // attempts that were not, and may have reached the server
	promptLow, promptHigh       int64
	completionLow, completionHi int64
}

// reach notes what an attempt can have left on the server. One that was refused by status is answered and counted there as no request;
// one that the proxy kept from the server isn't there at all.
func (s *rowSum) reach(r *Row) {
	b := &s.bounds
	if r.Outcome == OK {
		b.results++
		if c, ok := s.cut[r.Context]; ok {
			delete(s.cut, r.Context)
			b.promptLow += c.sure * r.PromptTokens.Or(0)
			b.promptHigh += c.maybe * r.PromptTokens.Or(0)
		}
		return
	}
	if !r.SentUS.OK || r.HTTPStatus.Or(200) != 200 || s.control != nil && s.control.kept(r) {
		return
	}
	b.cut++
	c := s.cut[r.Context]
	if !r.PromptTokens.OK {
		c.maybe++
		if r.FirstTokenUS.OK {
			c.sure++
		}
		s.cut[r.Context] = c
	}
	if !r.CompletionTokens.OK {
		b.completionLow += r.Deltas
		b.completionHi += max(s.cfg.Sampling.MaxTokens, r.Deltas)
	}
}

// reconcile sets counters of the server against the rows. One server's process and one client's segment are needed: else
// the difference of two readings isn't the run's.
func reconcile(l *Ledger, rows *rowSum) []Reconciliation {
	out := []Reconciliation{}
	if l.Segments != 1 || l.Samples.ServerRestarts > 0 {
		return out
	}
	b := &rows.bounds
	client := map[string]Reconciliation{
		SeriesPromptTokens: {Client: rows.promptAll, Low: b.promptLow, High: b.promptHigh},
		SeriesOutputTokens: {Client: rows.outAll, Low: b.completionLow, High: b.completionHi},
		SeriesRequests:     {Client: rows.sentAll, Low: b.results - rows.sentAll, High: b.results + b.cut - rows.sentAll},
		SeriesAborted:      {Client: b.cut, Low: -b.cut},
	}
	if rows.cachedKnown {
		client[SeriesPrefixHits] = Reconciliation{Client: rows.cachedAll, High: b.promptHigh}
	}
	for _, s := range l.Series {
		r, ok := client[s.Name]
		if !ok || s.Values < 2 || s.Resets > 0 {
			continue
		}
		r.Quantity, r.Server = s.Name, s.Last.V-s.First.V
		r.Residual = r.Server - r.Client
		out = append(out, r)
	}
	return out
}

// Within reports whether the residual lies in its declared bounds.
func (r *Reconciliation) Within() bool { return r.Residual >= r.Low && r.Residual <= r.High }
