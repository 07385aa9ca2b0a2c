package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics scrapes a Prometheus text document and returns one reading per canonical name, in the order of Names, also when the
// scrape failed: then every state is StateError, or StateNotExposed where the server has no such document.
func (c *Client) Metrics(ctx context.Context, url string) ([]Reading, error) {
	body, err := c.get(ctx, url, "text/plain;version=0.0.4;q=1,*/*;q=0.1")
	if err == nil {
		var readings []Reading
		if readings, err = ParseMetrics(body); err == nil {
			return readings, nil
		}
	}
	state := StateError
	if errors.Is(err, ErrAbsent) {
		state = StateNotExposed
	}
	return All(state), fmt.Errorf("scraping metrics: %w", err)
}

// All returns a reading of every canonical name in one state without a value.
func All(state string) []Reading {
	readings := make([]Reading, len(table))
	for i, s := range table {
		readings[i] = Reading{Name: s.name, State: state}
	}
	return readings
}

// ParseMetrics maps a Prometheus text document (exposition format 0.0.4) to the canonical names.
func ParseMetrics(text []byte) ([]Reading, error) {
	// A last line without its line feed is common and harmless; the parser refuses it.
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(bytes.Clone(text), '\n')
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("parsing metrics: %w", err)
	}
	readings := All(StateNotExposed)
	for i, s := range table {
		for _, r := range s.sources {
			if reading, ok := r.read(families); ok {
				reading.Name = s.name
				readings[i] = reading
				break
			}
		}
	}
	return readings, nil
}

// read applies the rule; false where the server doesn't expose it.
func (r rule) read(families map[string]*dto.MetricFamily) (Reading, bool) {
	name := r.family
	family := families[name]
	if base, isTotal := strings.CutSuffix(name, "_total"); family == nil && isTotal {
		name = base
		family = families[name]
	}
	if old, ok := strings.CutPrefix(name, "trtllm_"); family == nil && ok { // as older versions, and Dynamo, have them
		more := r
		more.family = "trtllm:" + old
		if r.times != "" {
			more.times = strings.Replace(r.times, "trtllm_", "trtllm:", 1)
		}
		return more.read(families)
	}
	if family == nil {
		return Reading{}, false
	}
	out := Reading{Source: r.source(name)}
	total, found := 0.0, false
	for _, m := range family.Metric {
		if !firstRank(m) {
			continue
		}
		v, ok := r.sample(m)
		if ok && r.times != "" {
			v, ok = multiply(v, m, families[r.times])
		}
		if !ok {
			continue
		}
		switch {
		case !found || math.IsNaN(v):
			total = v
		case r.fold == largest:
			total = max(total, v)
		default:
			total += v
		}
		found = true
	}
	if !found {
		return Reading{}, false
	}
	if r.plus != "" {
		more, ok := rule{family: r.plus}.read(families)
		if !ok || !more.Value.OK {
			return Reading{}, false
		}
		total += float64(more.Value.V)
	}
	scale := r.scale
	if scale == 0 {
		scale = 1
	}
	out.Value, out.State = scaled(total, scale)
	return out, true
}

// source is the series as the server names it.
func (r rule) source(family string) string {
	switch r.fold {
	case histSum:
		return family + "_sum"
	case histCount:
		return family + "_count"
	}
	if r.times != "" {
		return family + "*" + r.times
	}
	if r.plus != "" {
		return family + "+" + r.plus
	}
	if name, value, ok := strings.Cut(r.label, "="); ok {
		return fmt.Sprintf("%s{%s=%q}", family, name, value)
	}
	if r.label != "" {
		return fmt.Sprintf("%s{%s}", family, r.label)
	}
	return family
}

func (r rule) sample(m *dto.Metric) (float64, bool) {
	if r.fold == labelsProd {
		a, b, _ := strings.Cut(r.label, "*")
		x, okX := labelNumber(m, a)
		y, okY := labelNumber(m, b)
		return x * y, okX && okY
	}
	if name, value, ok := strings.Cut(r.label, "="); ok {
		if got, has := label(m, name); !has || got != value {
			return 0, false
		}
	}
	switch r.fold {
	case histSum:
		switch {
		case m.Histogram != nil:
			return m.Histogram.GetSampleSum(), true
		case m.Summary != nil:
			return m.Summary.GetSampleSum(), true
		}
		return 0, false
	case histCount:
		switch {
		case m.Histogram != nil:
			return float64(m.Histogram.GetSampleCount()), true
		case m.Summary != nil:
			return float64(m.Summary.GetSampleCount()), true
		}
		return 0, false
	}
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue(), true
	case m.Gauge != nil:
		return m.Gauge.GetValue(), true
	case m.Untyped != nil:
		return m.Untyped.GetValue(), true
	}
	return 0, false
}

// firstRank reports whether a sample is of the first of the ranks that share one model's work: each of them counts all of it. Engines
// (engine, dp_rank) are added up, for they share it out.
func firstRank(m *dto.Metric) bool {
	for _, name := range []string{"tp_rank", "pp_rank"} {
		if rank, ok := label(m, name); ok && rank != "0" {
			return false
		}
	}
	return true
}

// multiply takes the factor from the sample of family with the model of m.
func multiply(v float64, m *dto.Metric, family *dto.MetricFamily) (float64, bool) {
	model := modelOf(m)
	for _, f := range family.GetMetric() {
		if modelOf(f) == model && f.Gauge != nil {
			return v * f.Gauge.GetValue(), true
		}
	}
	return 0, false
}

func modelOf(m *dto.Metric) string {
	if name, ok := label(m, "model_name"); ok {
		return name
	}
	name, _ := label(m, "model")
	return name
}

func label(m *dto.Metric, name string) (string, bool) {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue(), true
		}
	}
	return "", false
}

func labelNumber(m *dto.Metric, name string) (float64, bool) {
	s, ok := label(m, name)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil
}
