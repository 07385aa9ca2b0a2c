package scrape

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// GPU is one reading of one GPU. What its source doesn't have, or has as "not supported", is absent.
type GPU struct {
	UUID                              string // "GPU-…" as the source writes it; of a MIG instance followed by "/" and its id
	MemoryUsedBytes, MemoryTotalBytes Opt
	PowerMW, EnergyMJ, BusyPPM, SMMHz Opt
	Xid                               Opt // the last Xid error, 0 for none
}

// ErrNoGPU says that a source answered and knows no GPU.
var ErrNoGPU = errors.New("it knows no GPU")

// DCGM scrapes a dcgm-exporter.
func (c *Client) DCGM(ctx context.Context, url string) ([]GPU, error) {
	body, err := c.get(ctx, url, "text/plain;version=0.0.4;q=1,*/*;q=0.1")
	if err != nil {
		return nil, fmt.Errorf("scraping dcgm: %w", err)
	}
	return ParseDCGM(body)
}

// dcgmFields are dcgm-exporter's gauges and counters and their units (etc/default-counters.csv): MiB, W, mJ, %, MHz.
var dcgmFields = []struct {
	family string
	scale  float64
	of     func(*GPU) *Opt
}{
	{"DCGM_FI_DEV_FB_USED", 1 << 20, func(g *GPU) *Opt { return &g.MemoryUsedBytes }},
	{"DCGM_FI_DEV_POWER_USAGE", 1e3, func(g *GPU) *Opt { return &g.PowerMW }},
	{"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1, func(g *GPU) *Opt { return &g.EnergyMJ }},
	{"DCGM_FI_DEV_GPU_UTIL", 1e4, func(g *GPU) *Opt { return &g.BusyPPM }},
	{"DCGM_FI_DEV_SM_CLOCK", 1, func(g *GPU) *Opt { return &g.SMMHz }},
	{"DCGM_FI_DEV_XID_ERRORS", 1, func(g *GPU) *Opt { return &g.Xid }},
}

// ParseDCGM reads what a dcgm-exporter exposes. Memory in total is what is used, free and reserved.
func ParseDCGM(text []byte) ([]GPU, error) {
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(bytes.Clone(text), '\n')
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("parsing dcgm's metrics: %w", err)
	}
	found := map[string]*GPU{}
	read := func(family string, scale float64, set func(*GPU, Opt)) {
		for _, m := range families[family].GetMetric() {
			uuid, ok := label(m, "UUID")
			if !ok || uuid == "" {
				continue
			}
			if instance, _ := label(m, "GPU_I_ID"); instance != "" {
				uuid += "/" + instance
			}
			if found[uuid] == nil {
				found[uuid] = &GPU{UUID: uuid}
			}
			if v, ok := dcgmValue(m); ok {
				if x, state := scaled(v, scale); state == StateValue && x.V >= 0 {
					set(found[uuid], x)
				}
			}
		}
	}
	for _, f := range dcgmFields {
		read(f.family, f.scale, func(g *GPU, v Opt) { *f.of(g) = v })
	}
	read("DCGM_FI_DEV_FB_FREE", 1<<20, func(g *GPU, v Opt) {
		if g.MemoryUsedBytes.OK {
			g.MemoryTotalBytes = Some(g.MemoryUsedBytes.V + v.V)
		}
	})
	read("DCGM_FI_DEV_FB_RESERVED", 1<<20, func(g *GPU, v Opt) {
		if g.MemoryTotalBytes.OK {
			g.MemoryTotalBytes.V += v.V
		}
	})
	var list []GPU
	for _, g := range found {
		g.BusyPPM = percent(g.BusyPPM)
		list = append(list, *g)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("dcgm: %w", ErrNoGPU)
	}
	slices.SortFunc(list, func(a, b GPU) int { return strings.Compare(a.UUID, b.UUID) })
	return list, nil
}

// dcgmValue is a sample's value. DCGM marks what it hasn't by values near the largest of an int32, an int64 and by 2^47 (dcgm_fields.h,
// DCGM_INT32_BLANK, DCGM_INT64_BLANK, DCGM_FP64_BLANK).
func dcgmValue(m *dto.Metric) (float64, bool) {
	v, ok := rule{}.sample(m)
	blank := v >= 0x7ffffff0 && v <= 0x7fffffff || v >= 0x7ffffffffffffff0 || v >= 1<<47 && v <= 1<<47+16
	return v, ok && !blank && !math.IsNaN(v)
}

// percent drops a share of more than the whole.
func percent(v Opt) Opt {
	if v.V > 1_000_000 {
		return Opt{}
	}
	return v
}

// SMIArgs ask nvidia-smi for what ParseSMI reads.
func SMIArgs() []string {
	return []string{"--query-gpu=uuid,memory.used,memory.total,power.draw,utilization.gpu,clocks.sm", "--format=csv,noheader,nounits"}
}

// ParseSMI reads nvidia-smi's answer to SMIArgs: MiB, MiB, W, %, MHz. It has no energy.
func ParseSMI(text []byte) ([]GPU, error) {
	r := csv.NewReader(bytes.NewReader(text))
	r.TrimLeadingSpace, r.FieldsPerRecord = true, 6
	records, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("reading nvidia-smi's table: %w", err)
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("nvidia-smi: %w", ErrNoGPU)
	}
	var list []GPU
	for _, f := range records {
		if !strings.HasPrefix(f[0], "GPU-") {
			return nil, fmt.Errorf("reading nvidia-smi's table: %q isn't a GPU's UUID", f[0][:min(len(f[0]), 60)])
		}
		list = append(list, GPU{UUID: f[0], MemoryUsedBytes: smiNumber(f[1], 1<<20), MemoryTotalBytes: smiNumber(f[2], 1<<20),
			PowerMW: smiNumber(f[3], 1e3), BusyPPM: percent(smiNumber(f[4], 1e4)), SMMHz: smiNumber(f[5], 1)})
	}
	return list, nil
}

// smiNumber reads a number; "[N/A]" and the like are absent.
func smiNumber(s string, scale float64) Opt {
	v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || v < 0 {
		return Opt{}
	}
	x, _ := scaled(v, scale)
	return x
}
