package verify

import (
	"fmt"
	"slices"

	"cotenant/internal/ledger"
)

// gauges have to come back where nothing is open.
var gauges = []string{"requests_running", "requests_waiting", "kv_usage_ppm", "kv_pages_used", "kv_slots"}

// gaugeFacts are readings of one sample.
type gaugeFacts struct {
	t      int64
	values map[string]int64
}

// gauged keeps a sample's gauges, where the contract asks about them.
func (f *facts) gauged(r *ledger.Resource) {
	if f.control == nil {
		return
	}
	g := gaugeFacts{r.TUS, map[string]int64{}}
	for _, s := range r.Series {
		if s.Value.OK && slices.Contains(gauges, s.Name) {
			g.values[s.Name] = s.Value.V
		}
	}
	f.gauges[r.Segment] = append(f.gauges[r.Segment], g)
}

// quietPoints holds each quiet event against the samples: the one that it speaks of, the last that isn't after it, was taken while no
// attempt was open, and its gauges are no higher than the segment's first readings.
func quietPoints(e *evidence) (string, string) {
	f, p := e.facts, e.config.Controlled
	exposed := false
	for _, samples := range f.gauges {
		for _, g := range samples {
			exposed = exposed || len(g.values) > 0
		}
	}
	last := map[int64]int64{} // by segment
	for _, q := range f.control.quiet {
		last[q.Segment] = q.TUS
		if why := f.quietAt(&q, p, exposed); why != "" {
			return fmt.Sprintf("the quiet point at %d us of segment %d: %s", q.TUS, q.Segment, why), ""
		}
	}
	for _, s := range inOrder(f.walls) {
		if at, ok := last[s]; f.ended[s] && (!ok || at < f.walls[s].to) {
			return fmt.Sprintf("segment %d has no quiet point after its last end", s), ""
		}
	}
	if n := int64(len(f.control.quiet)); len(f.segments) == 1 && n < p.QuietPoints {
		return fmt.Sprintf("%d quiet points, %d were registered", n, p.QuietPoints), ""
	}
	if !exposed {
		return "", "the server exposes none of the gauges"
	}
	return "", ""
}

func (f *facts) quietAt(q *ledger.Event, p *ledger.ControlPlan, exposed bool) string {
	samples := f.gauges[q.Segment]
	i := len(samples) - 1
	for i >= 0 && samples[i].t > q.TUS {
		i--
	}
	if i < 0 {
		return "no sample comes before it"
	}
	at := samples[i]
	end := int64(0)
	for k, spans := range f.lanes {
		if k.segment != q.Segment {
			continue
		}
		for _, s := range spans.all() {
			if s.from <= at.t && s.to > at.t {
				return fmt.Sprintf("context %d was open at its sample of %d us", s.context, at.t)
			}
			if s.to <= q.TUS {
				end = max(end, s.to)
			}
		}
	}
	if !exposed {
		return ""
	}
	if !q.Value.OK {
		return "the server's gauges didn't come back: " + orNone(q.Detail)
	}
	if q.Value.V != at.t-end || q.Value.V > p.QuietLimitUS+1_000_000 {
		return fmt.Sprintf("it took %d us by the event, %d us by the samples; the limit is %d us", q.Value.V, at.t-end, p.QuietLimitUS)
	}
	for _, name := range gauges {
		for _, g := range samples {
			if first, ok := g.values[name]; ok {
				if now, ok := at.values[name]; !ok || now > first {
					return fmt.Sprintf("%s is %d, at first it was %d", name, now, first)
				}
				break
			}
		}
	}
	return ""
}
