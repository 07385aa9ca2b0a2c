package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"html/template"

	"cotenant/internal/compare"
	"cotenant/internal/ledger"
	"cotenant/internal/report/plot"
	"cotenant/internal/verify"
)

// ErrUnlike says that two runs aren't like for like, and in what.
var ErrUnlike = errors.New("the runs aren't alike: there is no page of the two")

// ErrAxis says that two runs can't be held against each other along an axis of that name.
var ErrAxis = errors.New("what varies")

// comparisonPage is what the page of two runs is laid out from.
type comparisonPage struct {
	Ratios []ratioRow
	Axis   template.HTML // of the ratios' strips
}

type ratioRow struct {
	At   string // place in the comparison's /ratios
	Name string // words for it
	Unit string
	SVG  template.HTML
}

// Compare makes the page of the run folders a and b, which may differ in vary, one of compare.Axes. Errors as Run's, and ErrUnlike where
// they differ in more, ErrAxis where vary is none.
func Compare(a, b, vary, version string) (*Page, error) {
	docs := documents{}
	runs := [2]*run{}
	for i, dir := range []string{a, b} {
		r, err := openRun(dir, string(rune('a'+i)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		runs[i], docs[r.doc.id] = r, r.doc
	}
	c, err := compare.Folders(a, b, vary, verify.Options{})
	switch {
	case errors.Is(err, compare.ErrNotVerified):
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrAxis, err)
	case !c.Alike:
		return nil, unlike(c)
	}
	for i, r := range runs {
		if c.Runs[i].FilesRoot != r.ledger.FilesRoot {
			return nil, changed(errors.New("its files aren't those that were compared"))
		}
		c.Runs[i].Path = "" // where it lies is nobody's business
	}
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	if docs["c"], err = newDocument("c", data); err != nil {
		return nil, err
	}
	figures := map[string]figure{}
	for _, f := range []figure{
		both("ttft", "Time to first token", runs, func(t *trace) []int64 { return t.ttft }, func(t *ledger.Times) *ledger.Distribution { return &t.TTFT }),
		both("latency", "Latency", runs, func(t *trace) []int64 { return t.latency }, func(t *ledger.Times) *ledger.Distribution { return &t.Latency }),
	} {
		figures[f.ID] = f
	}
	for _, r := range runs {
		s := &soakCharts{view: &view{docs: documents{"a": r.doc}, prefix: r.doc.id + ":"}, run: r, x: plot.Seconds(max(runs[0].trace.end, runs[1].trace.end), 4), of: r.doc.id}
		f := s.inFlight()
		f.Lead = ""
		figures[f.ID] = f
	}
	title := "Two runs that differ in the " + vary
	return render("compare", &view{docs: docs, figures: figures}, pageData{Title: title, Version: version, Body: ratioRows(c)}, []string{c.Runs[0].RunID, c.Runs[1].RunID})
}

func unlike(c *compare.Report) error {
	err := ErrUnlike
	for _, x := range c.Conditions {
		if !x.Holds {
			err = fmt.Errorf("%w; %s: %s", err, x.Name, x.Why)
		}
	}
	return err
}

// both draws the tails of one time of two runs over each other.
func both(id, title string, runs [2]*run, values func(*trace) []int64, of func(*ledger.Times) *ledger.Distribution) figure {
	f := figure{ID: id, Title: title}
	x, y := values(runs[0].trace), values(runs[1].trace)
	if len(x) == 0 || len(y) == 0 {
		f.Reason = "Not established: a run has no result with this time."
		return f
	}
	lo, hi := span(x, y)
	c := plot.Chart{ID: id, Title: title + " of both runs, percentiles", Height: 260, X: plot.Tail(int64(max(len(x), len(y)))), Y: plot.LogTime(lo, hi),
		Desc: "Percentiles of both runs from the least to the largest, each further nine as wide as the one before, over time on a logarithmic axis. Whiskers are upper bounds. The tables have the numbers."}
	c.Marks = append(c.Marks, tailMarks(x, 0, of(&runs[0].ledger.Times), "s1", "A")...)
	c.Marks = append(c.Marks, tailMarks(y, 0, of(&runs[1].ledger.Times), "s2", "B")...)
	f.SVG = c.SVG()
	return f
}

// ratioWords names what is compared.
var ratioWords = map[string]string{
	"result_rate": "Results a second", "completion_rate": "Completion tokens a second", "ttft_p50": "Time to first token, median", "ttft_p95": "Time to first token, p95",
	"latency_p50": "Latency, median", "latency_p95": "Latency, p95", "latency_from_schedule_p50": "Latency from the schedule, median",
	"latency_from_schedule_p95": "Latency from the schedule, p95", "tasks_right": "Tasks right",
}

// ratioRows are the ratios over one log axis on which 1 stands in the middle.
func ratioRows(c *compare.Report) *comparisonPage {
	far := 1.25
	reach := func(e6 int64) {
		if v := float64(e6) / 1e6; v > 0 {
			far = max(far, v, 1/v)
		}
	}
	for _, r := range c.Ratios {
		reach(r.RatioE6)
		if r.LowE6 != nil && r.HighE6 != nil {
			reach(*r.LowE6)
			reach(*r.HighE6)
		}
	}
	x := plot.Log(1/far, far)
	p := &comparisonPage{Axis: plot.StripAxis(x)}
	for i, r := range c.Ratios {
		s := plot.Strip{X: x, Class: "s5", Median: float64(r.RatioE6) / 1e6, Ref: 1}
		if r.LowE6 != nil && r.HighE6 != nil {
			s.Bars = []plot.Bar{{From: float64(*r.LowE6) / 1e6, To: float64(*r.HighE6) / 1e6, Y: 0.6}}
		}
		switch r.Verdict {
		case compare.Higher, compare.Lower:
			s.Class = "s1"
		}
		unit := unitCount
		switch r.Unit {
		case "us":
			unit = unitUS
		case "ppm":
			unit = unitPPM
		case "per 10^6 s", "tokens per 10^6 s":
			unit = unitPerE6
		}
		p.Ratios = append(p.Ratios, ratioRow{fmt.Sprintf("c:/ratios/%d", i), ratioWords[r.Name], unit, s.SVG()})
	}
	return p
}
