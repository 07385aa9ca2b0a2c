package soak

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"cotenant/internal/ledger"
)

// quietPause is the time between two samples of a server that should be idle.
const quietPause = 50 * time.Millisecond

// quiet samples while nothing is open, until two samples in a row are equal in all counters and gauges and the gauges are no higher than
// in the segment's first sample, or limit has passed, and says so in an event. The event speaks of the last sample before it.
func (s *sampler) quiet(ctx context.Context, limit time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.clk.lastStamp()
	deadline := time.Now().Add(limit)
	var before []ledger.SeriesReading
	for {
		r, err := s.take(ctx)
		if err != nil {
			return err
		}
		why := s.away(r.Series)
		if why == "" && (slices.EqualFunc(before, r.Series, still) || !s.exposed) {
			value, detail := ledger.Some(r.TUS-end), ""
			if !s.exposed {
				value, detail = ledger.Opt{}, "the server exposes none of the gauges"
			}
			return s.event(ledger.EventQuiet, value, detail)
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			if why == "" {
				why = "its counters still move"
			}
			return s.event(ledger.EventQuiet, ledger.Opt{}, why)
		}
		before = r.Series
		select {
		case <-ctx.Done():
		case <-time.After(quietPause):
		}
	}
}

// still reports whether two readings of one series are equal, where it is a gauge or a counter: memory may move.
func still(a, b ledger.SeriesReading) bool {
	return a.Value == b.Value || !strings.HasSuffix(a.Name, "_total") && !slices.Contains(gauges, a.Name)
}

// away says which gauge isn't back at what the segment's first reading of it was, empty if all are.
func (s *sampler) away(series []ledger.SeriesReading) string {
	for _, r := range series {
		first, known := s.baseline[r.Name]
		switch {
		case !known:
		case !r.Value.OK:
			return fmt.Sprintf("%s could not be read", r.Name)
		case r.Value.V > first:
			return fmt.Sprintf("%s is %d, at first it was %d", r.Name, r.Value.V, first)
		}
	}
	return ""
}

// note keeps the first reading of each gauge.
func (s *sampler) note(series []ledger.SeriesReading) {
	for _, r := range series {
		if !r.Value.OK || !slices.Contains(gauges, r.Name) {
			continue
		}
		s.exposed = true
		if s.baseline == nil {
			s.baseline = map[string]int64{}
		}
		if _, known := s.baseline[r.Name]; !known {
			s.baseline[r.Name] = r.Value.V
		}
	}
}

var gauges = ledger.Gauges()
