package ledger

// orchestrationAgainst notes what the contract orchestration has against a run, beside what every run is held to.
func orchestrationAgainst(l *Ledger, against map[string]bool) {
	c := &l.Counts
	against[WhyReconcile] = !countersAgree(l)
	against[WhyTasks] = l.Oracle.Passed != c.Turns
	against[WhyMemory] = l.InProcess || l.Peaks.ClientHWMBytes.Or(MaxClientBytes) >= MaxClientBytes
	// Each worker opens one connection a segment, and another one where an attempt spoilt its own or the server had closed it. Now and then
	// net/http gives one up without a word: on a busy machine its writer may report later than 50 ms after the answer has been read.
	against[WhyConnections] = c.Attempts-c.ConnReused > l.Workers*l.Segments+(c.Attempts-c.Turns)+c.Reconnects+c.Attempts/1000
}

// countersAgree reports whether the endpoint counted the requests and tokens that the client did. It can't be asked of several segments.
func countersAgree(l *Ledger) bool {
	if l.Segments != 1 {
		return true
	}
	agree := map[string]bool{}
	for i := range l.Reconciliation {
		agree[l.Reconciliation[i].Quantity] = l.Reconciliation[i].Within()
	}
	return agree[SeriesRequests] && agree[SeriesPromptTokens] && agree[SeriesOutputTokens]
}

// claimOrchestration claims what a run against an endpoint that computes nothing is about.
func claimOrchestration(l *Ledger, claim func(id, statement string, v Opt, unit, evidence, bound string)) {
	claim("conn_reused", "requests that went over a connection which had carried one before", Some(l.Counts.ConnReused), "requests", "/counts/conn_reused",
		"of all attempts; the others opened one")
	claimReconciled(l, claim)
}
