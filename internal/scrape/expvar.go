package scrape

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Vars is what a Go server's /debug/vars says of its memory and load.
type Vars struct {
	HeapBytes Opt // live heap
	SysBytes  Opt // obtained from the system by the Go runtime
	GCs       Opt
	Running   Opt // requests that the server counts as running
}

// Paths by which servers name these in /debug/vars, tried in order: expvar's own memstats, and fak's gateway.
var (
	varsHeap    = []string{"memstats.HeapAlloc", "runtime.memory.heap_alloc_bytes"}
	varsSys     = []string{"memstats.Sys", "runtime.memory.sys_bytes"}
	varsGCs     = []string{"memstats.NumGC", "runtime.memory.num_gc"}
	varsRunning = []string{"cotenant.requests_in_flight", "gateway.inflight_requests"}
)

// Vars fetches an expvar document.
func (c *Client) Vars(ctx context.Context, url string) (Vars, error) {
	body, err := c.get(ctx, url, "application/json")
	if err != nil {
		return Vars{}, fmt.Errorf("reading vars: %w", err)
	}
	return ParseVars(body)
}

// ParseVars reads an expvar document. What isn't in it, or isn't a whole number, is absent.
func ParseVars(text []byte) (Vars, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var doc map[string]any
	if err := dec.Decode(&doc); err != nil {
		return Vars{}, fmt.Errorf("parsing vars: %w", err)
	}
	return Vars{HeapBytes: lookup(doc, varsHeap), SysBytes: lookup(doc, varsSys), GCs: lookup(doc, varsGCs), Running: lookup(doc, varsRunning)}, nil
}

func lookup(doc map[string]any, paths []string) Opt {
	for _, path := range paths {
		var v any = doc
		for name := range strings.SplitSeq(path, ".") {
			m, _ := v.(map[string]any)
			v = m[name]
		}
		n, ok := v.(json.Number)
		if !ok {
			continue
		}
		if i, err := strconv.ParseInt(n.String(), 10, 64); err == nil {
			return Some(i)
		}
		if f, err := n.Float64(); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return Some(int64(f))
		}
	}
	return Opt{}
}
