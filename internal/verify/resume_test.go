package verify

import (
	"testing"

	"cotenant/internal/ledger"
	"cotenant/internal/stats"
)

// resumed turns a run into one that was killed at cut µs and went on: what was open then left no row and was sent again in a
// second segment, with everything after it.
func resumed(r *run, cut int64) *run {
	out := &run{cfg: r.cfg}
	shift := map[int64]int64{} // of each worker's times in the second segment
	for _, x := range r.rows {
		if x.PickedUS < cut && x.EndUS > cut {
			shift[x.Worker] = -x.PickedUS
		}
	}
	var starts, ends stats.Column
	end := int64(0)
	for _, x := range r.rows {
		if x.EndUS > cut {
			by, open := shift[x.Worker]
			if !open {
				by = -cut
			}
			by += 10_000
			x.Segment, x.QueuedUS = 1, 0
			for _, t := range []*int64{&x.PickedUS, &x.SentUS.V, &x.HeadersUS.V, &x.FirstEventUS.V, &x.FirstTokenUS.V, &x.FirstContentUS.V, &x.LastTokenUS.V, &x.EndUS} {
				*t += by
			}
			if !x.FirstTokenUS.OK { // null stays null
				x.FirstEventUS, x.FirstTokenUS, x.FirstContentUS, x.LastTokenUS = ledger.Opt{}, ledger.Opt{}, ledger.Opt{}, ledger.Opt{}
			}
			starts.Add(x.SentUS.V)
			ends.Add(x.EndUS)
			end = max(end, x.EndUS)
		}
		out.rows = append(out.rows, x)
	}
	for _, s := range r.resources {
		if s.TUS <= cut {
			out.resources = append(out.resources, s)
		}
	}
	sample := out.resources[len(out.resources)-1]
	sample.Segment, sample.Client.InFlight, sample.Client.InFlightPeak = 1, 0, 0
	for sample.TUS = 100; ; sample.TUS += r.cfg.ResourceUS {
		out.resources = append(out.resources, sample)
		if sample.TUS > end {
			break
		}
	}
	wall := r.cfg.StartedWallUS
	out.events = []ledger.Event{
		{Kind: ledger.EventStart, WallUS: ledger.Some(wall)},
		{Segment: 1, Kind: ledger.EventStart, WallUS: ledger.Some(wall + cut + 1e6)},
		{Segment: 1, Kind: ledger.EventTornRow, Value: ledger.Some(17), Detail: ledger.RowsFile},
		{TUS: end, Segment: 1, Kind: ledger.EventPeak, Value: ledger.Some(stats.Peak(&starts, &ends))},
		{TUS: end, Segment: 1, Kind: ledger.EventEnd, WallUS: ledger.Some(wall + cut + 1e6 + end), Detail: ledger.StatusFinished},
	}
	return out
}

func TestResumedRun(t *testing.T) {
	base := good(t, 100)
	last := base.resources[len(base.resources)-1].TUS
	for _, cut := range []int64{last / 3, last / 2, last * 3 / 4} {
		dir := t.TempDir()
		resumed(base, cut).write(t, dir, nil)
		r, err := Dir(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.Failed() {
			t.Errorf("cut at %d us: %s: %s", cut, f.Rule, f.Detail)
		}
	}
	// Killed once more before it ended.
	killed := resumed(base, last/2)
	killed.events = killed.events[:3]
	dir := t.TempDir()
	killed.write(t, dir, nil)
	r, err := Dir(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, f := range r.Failed() {
		ids = append(ids, f.Rule)
	}
	if len(ids) != 1 || ids[0] != "R-STAT-01" {
		t.Errorf("a run that never ended: %v", ids)
	}
}
