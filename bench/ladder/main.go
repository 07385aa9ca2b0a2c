// Ladder measures the client alone: `cotenant soak` under the contract orchestration against bench/null, at 10,000, 100,000 and 1,000,000
// contexts, both on this machine. It prints a Markdown table, and the memory that a context takes as the slope of the client's peak over
// the rungs. Everything is built, run and verified by
//
//	go run ./bench/ladder
//
// A bare client of net/http and encoding/json, which writes nothing, follows in each mode as the yardstick of the hour. The exit code is
// 1 where a run isn't admitted or verified, or the client's memory misses its goals; rates are compared with theirs in words, since a machine
// that others use too has none.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

type options struct {
	rungs   []int64
	modes   []string
	workers int64
	bare    time.Duration
	keep    string
	scratch string
}

// Goals.
const (
	maxSlope   = 64          // bytes of the client's peak a context
	maxPeak    = 256_000_000 // bytes of the client's peak
	rateOnce   = 10_000      // contexts a second where an answer is written at once
	rateFlush  = 7_000       // where each event is
	modeOnce   = "once"
	modeFlush  = "flush"
	slopeRungs = 2 // that a slope needs
)

func main() {
	var o options
	rungs := flag.String("rungs", "10000,100000,1000000", "numbers of contexts")
	modes := flag.String("modes", "once,flush", "how the endpoint writes: once an answer, or flush each event")
	flag.Int64Var(&o.workers, "workers", 16, "requests in flight at once")
	flag.DurationVar(&o.bare, "bare", 5*time.Second, "how long the bare client runs; 0: not")
	flag.StringVar(&o.keep, "keep", "", "folder in which run folders are kept (some 770 bytes a context); empty: removed")
	flag.Parse()
	if err := o.parse(*rungs, *modes); err != nil {
		fmt.Fprintln(os.Stderr, "bench/ladder:", err)
		os.Exit(2)
	}
	ok, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/ladder:", err)
		os.Exit(1)
	}
	if !ok {
		os.Exit(1)
	}
}

func (o *options) parse(rungs, modes string) error {
	for _, s := range strings.Split(rungs, ",") {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 1 {
			return fmt.Errorf("--rungs %q: want numbers like 10000,100000", rungs)
		}
		o.rungs = append(o.rungs, n)
	}
	for _, m := range strings.Split(modes, ",") {
		if m != modeOnce && m != modeFlush {
			return fmt.Errorf("--modes %q: want %s, %s or both", modes, modeOnce, modeFlush)
		}
		o.modes = append(o.modes, m)
	}
	return nil
}

func run(o options) (ok bool, err error) {
	if o.scratch, err = os.MkdirTemp(o.keep, "cotenant-ladder-"); err != nil {
		return false, err
	}
	if o.keep == "" {
		defer os.RemoveAll(o.scratch)
	}
	bins, err := build(o.scratch)
	if err != nil {
		return false, err
	}
	fmt.Printf("%s; load average %s before\n\n", machine(), load())
	printHead()
	ok = true
	var notes []string
	for _, mode := range o.modes {
		var results []result
		for _, n := range o.rungs {
			r, err := step(o, bins, mode, n)
			if err != nil {
				return false, fmt.Errorf("%d contexts, %s: %w", n, mode, err)
			}
			results = append(results, r)
			r.print()
			ok = ok && r.holds
		}
		if o.bare > 0 {
			rate, err := yardstick(o, bins, mode)
			if err != nil {
				return false, fmt.Errorf("bare client, %s: %w", mode, err)
			}
			notes = append(notes, fmt.Sprintf("bare net/http and encoding/json, %s, %v: %.0f answers/s", mode, o.bare, rate))
		}
		lines, within := judge(mode, results)
		notes = append(notes, lines...)
		ok = ok && within
	}
	fmt.Println()
	for _, n := range notes {
		fmt.Println("- " + n)
	}
	fmt.Printf("\nload average %s after\n", load())
	return ok, nil
}

// judge holds a mode's results against the goals.
func judge(mode string, results []result) (notes []string, ok bool) {
	ok = true
	goal := map[string]float64{modeOnce: rateOnce, modeFlush: rateFlush}[mode]
	for _, r := range results {
		if r.rate < goal {
			notes = append(notes, fmt.Sprintf("%s, %d contexts: %.0f contexts/s misses the goal of %.0f; %.0f µs of CPU a context are %.0f/s of %d cores alone, and others had %.2f cores",
				mode, r.contexts, r.rate, goal, r.clientCPU+r.serverCPU, float64(r.cores)*1e6/(r.clientCPU+r.serverCPU), r.cores, r.others))
		}
		if r.peak >= maxPeak {
			ok = false
			notes = append(notes, fmt.Sprintf("%s, %d contexts: the client's peak of %d bytes misses the goal of less than %d", mode, r.contexts, r.peak, int64(maxPeak)))
		}
	}
	if len(results) < slopeRungs {
		return notes, ok
	}
	whole := slope(results, func(r result) float64 { return float64(r.peak) })
	running := slope(results, func(r result) float64 { return float64(r.hwm) })
	verdict := "met"
	if whole > maxSlope {
		verdict, ok = "missed", false
	}
	return append(notes, fmt.Sprintf("%s: %.1f bytes a context over the whole process, %.1f while it ran (least squares over the rungs); the goal of at most %d is %s", mode, whole, running, maxSlope, verdict)), ok
}

// slope fits a line by least squares.
func slope(results []result, y func(result) float64) float64 {
	var n, sx, sy, sxx, sxy float64
	for _, r := range results {
		x := float64(r.contexts)
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y(r), sxx+x*x, sxy+x*y(r)
	}
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}
