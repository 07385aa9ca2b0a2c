package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"slices"

	"cotenant/internal/interfere/record"
	"cotenant/internal/report/plot"
	"cotenant/internal/verify"
)

// matrixPage is what the page of an interference run is laid out from. It holds places, words of our own and pictures, never a number to show.
type matrixPage struct {
	Victims    []victimPage
	Mechanisms []mechanismRow
	Cells      []string // places
	Advice     []string // places; none where no objective was given
	Objective  bool
}

type mechanismRow struct {
	At      string // place in /mechanisms
	Words   string
	Planned bool
}

// victimPage is one victim's part.
type victimPage struct {
	ID         string        // for anchors: of the closed alphabet of ids
	Name       string        // place of its id
	Workload   string        // place of its workload
	Words      string        // what such a victim stands for
	Aggressors []string      // places of the columns' names, without that of the victim alone
	Rows       []heatRow     // a mechanism each
	Axis       template.HTML // of the strips
	Groups     []stripGroup
	Sweeps     []figure
}

// heatRow is a mechanism's cells: alone, then beside each aggressor.
type heatRow struct {
	Mechanism string // place
	Cells     []heatCell
}

// heatCell is one cell of the heat map. An empty At is a cell that wasn't planned.
type heatCell struct {
	At         string // place in /cells
	Class      string // h0 to h6 by slowdown, or a word
	Ratio      string // place of the slowdown against alone on the whole GPU, of the highest percentile that is established; empty: none
	Percentile string // place of its name, where that isn't p99
	Reference  bool   // it is what the others are held against
	Isolation  bool   // it has one
	Capped     bool
	State      string
}

// stripGroup is a victim's rows beside one aggressor.
type stripGroup struct {
	Aggressor string // place; empty: alone
	Open      bool   // at first: of many groups only some
	Rows      []stripRow
}

type stripRow struct {
	At        string // place in /cells
	Mechanism string // place
	SVG       template.HTML
	Capped    bool
	State     string
}

// folder is a run that verifies, with what its page needs.
type folder struct {
	*record.Folder
	view    *view
	cells   map[string]int // index in the ledger by id
	samples map[string][]int64
}

// Interfere makes the page of an interference run that was judged: every rule has to hold. objective is as `--slo` has it, empty for none. An
// error wraps ErrRefused where a rule fails, ErrObjective where that is none.
func Interfere(f *record.Folder, judged *record.Report, version, objective string) (*Page, error) {
	if again := f.Verify(); !again.Holds || f.Ledger == nil {
		return nil, refusedMatrix(again)
	}
	if !judged.Holds || judged.RunID != f.Plan.RunID {
		return nil, refusedMatrix(judged)
	}
	docs, err := matrixDocs(f, judged)
	if err != nil {
		return nil, err
	}
	if objective != "" {
		if docs["r"], err = adviceDoc(f.Ledger, objective); err != nil {
			return nil, err
		}
	}
	m := &folder{Folder: f, view: &view{docs: docs}, cells: map[string]int{}}
	for i := range f.Ledger.Cells {
		m.cells[f.Ledger.Cells[i].ID] = i
	}
	if err := m.gather(); err != nil {
		return nil, err
	}
	body, err := m.layout()
	if err != nil {
		return nil, err
	}
	body.Objective = objective != ""
	if body.Objective {
		if body.Advice, err = m.view.items("r:/advice"); err != nil {
			return nil, err
		}
	}
	return render("interfere", m.view, pageData{Title: "Interference on " + visible(f.Ledger.GPUName), Version: version, Body: body}, []string{f.Plan.RunID})
}

func refusedMatrix(judged *record.Report) error {
	err := ErrRefused
	for _, x := range judged.Failed() {
		err = fmt.Errorf("%w: %s %s: %s", err, x.Rule, x.Title, x.Detail)
	}
	return err
}

// matrixDocs are the documents of the page: the ledger as it lies there; the plan and the segments without the GPU's UUID, which names one
// machine.
func matrixDocs(f *record.Folder, judged *record.Report) (documents, error) {
	plan := f.Plan
	plan.GPUUUID = ""
	segments := slices.Clone(f.Segments)
	for i := range segments {
		segments[i].GPUUUID = ""
	}
	v := verdict{Grade: verify.GradeRecomputed, Failures: []failure{}, Rules: []ruled{}}
	for _, x := range judged.Results {
		v.add(x.Rule, x.Title, x.Result, x.Detail)
	}
	docs := documents{}
	for id, value := range map[string]any{"a": f.Ledger, "p": plan, "s": segments, "v": &v} {
		data, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		if docs[id], err = newDocument(id, data); err != nil {
			return nil, err
		}
	}
	return docs, nil
}

// ErrObjective says that an objective isn't one, or that no page has use for it.
var ErrObjective = errors.New("objective")

func adviceDoc(l *record.Ledger, text string) (*document, error) {
	o, err := record.ParseObjective(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrObjective, err)
	}
	r, err := record.Recommend(l, o, "", "")
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return newDocument("r", data)
}

// gather collects launches by cell and holds them against the ledger.
func (m *folder) gather() error {
	m.samples = map[string][]int64{}
	for i := range m.Rows {
		m.samples[m.Rows[i].Cell] = append(m.samples[m.Rows[i].Cell], m.Rows[i].HostNS...)
	}
	for i := range m.Ledger.Cells {
		c := &m.Ledger.Cells[i]
		list := m.samples[c.ID]
		if int64(len(list)) != c.Launches {
			return fmt.Errorf("rows and ledger differ in %s: %d launches, %d", c.ID, len(list), c.Launches)
		}
		if c.State == record.Void || c.State == record.Failed {
			delete(m.samples, c.ID)
			continue
		}
		slices.Sort(list)
		if len(list) > 0 && (c.Host.Max == nil || *c.Host.Max != list[len(list)-1]) {
			return fmt.Errorf("rows and ledger differ in the longest launch of %s", c.ID)
		}
		for k, p := range record.Percentiles {
			if v := c.Host.Quantiles[k].Value; v != nil && *v != p.P.Of(list) {
				return fmt.Errorf("rows and ledger differ in %s of %s", p.Name, c.ID)
			}
		}
	}
	return nil
}

func (m *folder) layout() (*matrixPage, error) {
	l := m.Ledger
	page := &matrixPage{}
	for i, x := range l.Mechanisms {
		page.Mechanisms = append(page.Mechanisms, mechanismRow{fmt.Sprintf("/mechanisms/%d", i), mechanismWords[x.Kind], x.Planned()})
	}
	for i := range l.Cells {
		page.Cells = append(page.Cells, fmt.Sprintf("/cells/%d", i))
	}
	for i, v := range m.Plan.Victims {
		page.Victims = append(page.Victims, m.victim(i, v))
	}
	return page, nil
}

// at is the place of a cell in the ledger; empty where it wasn't planned.
func (m *folder) at(victim, aggressor, mechanism string) (string, *record.CellResult) {
	i, ok := m.cells[record.CellID(victim, aggressor, mechanism, false)]
	if !ok {
		return "", nil
	}
	return fmt.Sprintf("/cells/%d", i), &m.Ledger.Cells[i]
}

func (m *folder) victim(index int, v record.Workload) victimPage {
	p := victimPage{ID: v.ID, Name: fmt.Sprintf("p:/victims/%d/id", index), Workload: fmt.Sprintf("p:/victims/%d", index), Words: workloadWords[v.Kind]}
	for j := range m.Plan.Aggressors {
		p.Aggressors = append(p.Aggressors, fmt.Sprintf("p:/aggressors/%d/id", j))
	}
	for i, x := range m.Ledger.Mechanisms {
		row := heatRow{Mechanism: fmt.Sprintf("/mechanisms/%d/id", i)}
		row.Cells = append(row.Cells, m.heat(v.ID, "", x.ID))
		any := row.Cells[0].At != ""
		for _, a := range m.Plan.Aggressors {
			c := m.heat(v.ID, a.ID, x.ID)
			any = any || c.At != ""
			row.Cells = append(row.Cells, c)
		}
		if any {
			p.Rows = append(p.Rows, row)
		}
	}
	m.strips(&p, v.ID)
	for j := range m.Plan.Aggressors {
		if f, ok := m.sweep(v.ID, index, j); ok {
			p.Sweeps = append(p.Sweeps, f)
		}
	}
	return p
}

// heat is one cell of the map.
func (m *folder) heat(victim, aggressor, mechanism string) heatCell {
	at, c := m.at(victim, aggressor, mechanism)
	if c == nil {
		return heatCell{}
	}
	h := heatCell{At: at, State: c.State, Capped: c.PowerCapped, Isolation: c.IsolationPPM != nil, Class: "unknown"}
	if mechanism == record.Whole && aggressor == "" {
		h.Reference, h.Class = true, heatClass(1_000_000)
		return h
	}
	if c.State == record.Void || c.Whole == nil {
		return h
	}
	for k, s := range slices.Backward(c.Whole.Slowdowns[:min(3, len(c.Whole.Slowdowns))]) { // p99, else p90, else p50
		if s.RatioPPM == nil {
			continue
		}
		h.Ratio, h.Class = fmt.Sprintf("%s/whole_reference/slowdowns/%d/ratio_ppm", at, k), heatClass(*s.RatioPPM)
		if s.Percentile != "p99" {
			h.Percentile = fmt.Sprintf("%s/whole_reference/slowdowns/%d/percentile", at, k)
		}
		break
	}
	return h
}

// heatSteps are the slowdowns, in parts per million, from which a cell is darker.
var heatSteps = []int64{1_100_000, 1_300_000, 1_700_000, 2_500_000, 5_000_000, 10_000_000}

func heatClass(ppm int64) string {
	k := 0
	for k < len(heatSteps) && ppm >= heatSteps[k] {
		k++
	}
	return fmt.Sprintf("h%d", k)
}

// strips are a victim's distributions, all over one axis.
func (m *folder) strips(p *victimPage, victim string) {
	lo, hi := 0.0, 0.0
	for i := range m.Ledger.Cells {
		list := m.samples[m.Ledger.Cells[i].ID]
		if m.Ledger.Cells[i].Cell.Victim != victim || len(list) == 0 {
			continue
		}
		if v := float64(list[0]); lo == 0 || v < lo {
			lo = v
		}
		hi = max(hi, float64(list[len(list)-1]))
	}
	x := plot.LogTime(lo, hi)
	p.Axis = plot.StripAxis(x)
	names := append([]record.Workload{{}}, m.Plan.Aggressors...)
	for j, a := range names {
		g := stripGroup{Open: len(names) <= 5 || j < 3}
		if j > 0 {
			g.Aggressor = fmt.Sprintf("p:/aggressors/%d/id", j-1)
		}
		for i, x2 := range m.Ledger.Mechanisms {
			at, c := m.at(victim, a.ID, x2.ID)
			if c == nil {
				continue
			}
			g.Rows = append(g.Rows, stripRow{At: at, Mechanism: fmt.Sprintf("/mechanisms/%d/id", i), SVG: m.strip(x, c, victim), Capped: c.PowerCapped, State: c.State})
		}
		if len(g.Rows) > 0 {
			p.Groups = append(p.Groups, g)
		}
	}
}

func (m *folder) strip(x plot.Axis, c *record.CellResult, victim string) template.HTML {
	list := m.samples[c.ID]
	bars, most := plot.LogBars(x, list, 1, 24, "")
	for i := range bars {
		bars[i].Y /= float64(max(most, 1))
	}
	s := plot.Strip{X: x, Bars: bars, Class: "s2", Median: established(c, "p50"), Tail: established(c, "p99")}
	if c.Aggressor == "" {
		s.Class = "s1"
	}
	if c.Host.Max != nil {
		s.Most = float64(*c.Host.Max)
	}
	if _, alone := m.at(victim, "", record.Whole); alone != nil {
		s.Ref = established(alone, "p99")
	}
	return s.SVG()
}

// established is a percentile, 0 where there is none.
func established(c *record.CellResult, name string) float64 {
	if q := c.Host.Of(name); q != nil && q.Value != nil {
		return float64(*q.Value)
	}
	return 0
}

// candidate is a mechanism in a sweep.
type candidate struct {
	index int // in the ledger's mechanisms
	at    plot.Point
	up    float64
	part  bool // it divides the GPU
}

// sweep sets a victim's tail against what its aggressor keeps, a point a mechanism, with the front of those that none beats in both.
func (m *folder) sweep(victim string, vi, ai int) (figure, bool) {
	a := m.Plan.Aggressors[ai]
	f := figure{ID: fmt.Sprintf("sweep-%d-%d", vi, ai), Place: fmt.Sprintf("p:/aggressors/%d/id", ai)}
	var list []candidate
	lo, hi := 0.0, 0.0
	for i, x := range m.Ledger.Mechanisms {
		_, c := m.at(victim, a.ID, x.ID)
		if c == nil || c.State == record.Void || established(c, "p99") == 0 || c.Neighbour == nil || c.Neighbour.KeptPPM == nil {
			continue
		}
		q := c.Host.Of("p99")
		p := candidate{i, plot.Point{X: float64(*c.Neighbour.KeptPPM), Y: float64(*q.Value)}, float64(*q.High), slices.Contains([]string{record.Green, record.MPSPercent, record.MPSStatic, record.MIG}, x.Kind)}
		list = append(list, p)
		if lo == 0 || p.at.Y < lo {
			lo = p.at.Y
		}
		hi = max(hi, p.up)
	}
	if len(list) < 2 {
		return f, false
	}
	c := plot.Chart{ID: f.ID, Height: 210, Title: fmt.Sprintf("p99 of %s beside %s against what %s keeps", victim, a.ID, a.ID),
		Desc: "Each point is a mechanism: to the right the neighbour keeps more of its rate, lower down the victim's tail is shorter. The dashed line joins those that no other beats in both. The table of all cells has the numbers.",
		X:    plot.Linear(1e6, 4, func(v float64) string { return fmt.Sprintf("%.0f %%", v/1e4) })}
	if _, alone := m.at(victim, "", record.Whole); alone != nil && established(alone, "p99") > 0 {
		ref := established(alone, "p99")
		lo, hi = min(lo, ref), max(hi, ref)
		c.Marks = append(c.Marks, plot.Rule{At: ref, Class: "limit", Label: "alone"})
	}
	for _, p := range list {
		c.X.Max = max(c.X.Max, p.at.X*1.02)
	}
	c.Y = plot.LogTime(lo, hi)
	front := pareto(list)
	line := plot.Line{Class: "s5 dashed"}
	for _, p := range front {
		line.Points = append(line.Points, p.at)
	}
	c.Marks = append(c.Marks, line)
	for _, p := range list {
		class := "s2"
		if p.part {
			class = "s1"
		}
		dot := plot.Dot{At: p.at, Class: class, Hollow: !p.part, Title: m.Ledger.Mechanisms[p.index].ID}
		if len(list) <= 9 || slices.Contains(front, p) {
			dot.Label = m.view.label("", fmt.Sprintf("/mechanisms/%d/id", p.index), unitText)
		}
		c.Marks = append(c.Marks, plot.Span{At: p.at, Up: p.up, Class: class}, dot)
	}
	f.SVG = c.SVG()
	return f, true
}

// pareto are the candidates that none beats in tail and throughput, by throughput.
func pareto(list []candidate) []candidate {
	var front []candidate
	for _, p := range list {
		beaten := slices.ContainsFunc(list, func(o candidate) bool {
			return o.at.X >= p.at.X && o.at.Y <= p.at.Y && (o.at.X > p.at.X || o.at.Y < p.at.Y)
		})
		if !beaten {
			front = append(front, p)
		}
	}
	slices.SortFunc(front, func(a, b candidate) int {
		switch {
		case a.at.X < b.at.X:
			return -1
		case a.at.X > b.at.X:
			return 1
		}
		return 0
	})
	return front
}
